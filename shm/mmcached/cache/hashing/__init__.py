"""Block hashes: equal hash, equal whole prefix.

block_hash      hashes of full blocks, chained
block_keys      what besides tokens enters a hash: items, salt, adapter
token_bytes     token ids as the bytes that are hashed
"""
