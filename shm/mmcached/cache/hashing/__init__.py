"""Block hashes: equal hashes mean equal prefixes.

block_hash      hashes of full blocks, chained
block_keys      the parts of a hash besides tokens: items, salt, adapter
token_bytes     token ids as bytes for hashing
"""
