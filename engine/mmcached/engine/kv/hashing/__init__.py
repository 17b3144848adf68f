"""Block hashes: equal hash, equal whole prefix.

block_hash      hashes of full blocks, chained
block_keys      what besides tokens enters a hash: items, salt, adapter
request_hashes  the block hashes of requests, kept until these have ended
token_bytes     token ids as the bytes that are hashed
"""
