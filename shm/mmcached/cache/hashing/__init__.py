"""Block hashes: equal hashes mean equal prefixes.

`block_hash` makes chained hashes of full blocks, of tokens (`token_bytes`) and of items, salt and adapter
(`block_keys`).
"""
