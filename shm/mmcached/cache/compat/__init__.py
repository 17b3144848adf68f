"""Programs without the service find here what vLLM's caches of processed items share; names and meaning are vLLM's.

nested         arrays in lists and dicts, without knowing numpy or torch
items          an item and its record, the form in which it travels
features       an item's place in a prompt; what P0 sends to P1
lru            the LRU cache, with pins and statistics
sizes          the bytes that an item counts
query_counter  the queries of a cache of P0
base           the contract of all caches, both sides
"""
