"""Block hashes: equal digest, equal whole prefix.

block_hash    digests of full blocks, chained
block_keys    what besides tokens enters a digest: items, salt, adapter
token_bytes   token ids as the bytes that are hashed
"""
