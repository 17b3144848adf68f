"""vLLM's caches of processed items, for programs without the service; names and meaning are vLLM's.

items              an item and its record, the form in which it travels
nested             arrays in lists and dicts, without knowing numpy or torch
features           an item's place in a prompt; what P0 sends to P1
lru_cache          the LRU cache, with pins and statistics
sizes              the bytes that an item counts
query_counter      the queries of a cache of P0
base               the contract of all caches, both sides
sender_caches      P0: whole items kept here; or the mirror of what a receiver keeps
receiver_cache     P1's end of the mirrored processor cache, which keeps items
shm_sender_cache   P0: items in the ring, which attached readers lease
ring_items         records in a ring with a note each
shm_receiver_cache P1: reads items in place, under leases of its own
factories          the cache of P0 that a configuration asks for

Needs no torch.
"""
