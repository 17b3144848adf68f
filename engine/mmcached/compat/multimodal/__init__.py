"""vLLM's caches of processed items, for programs without the service, with vLLM's names and meanings.

P0 is the process that prepares requests (the sender of items), P1 the engine or a worker (the receiver).

items              an item and its record, the form in which it is sent
nested             arrays in lists and dicts, without importing numpy or torch
features           an item's place in a prompt; the feature that P0 sends to P1
lru_cache          the LRU cache, with pins and statistics
sizes              the bytes that an item counts for
query_counter      the queries of a cache of P0
base               the contract of all caches, both sides
sender_caches      P0: keeps whole items; or mirrors a receiver's entries
receiver_cache     P1's half of the mirrored processor cache, which keeps items
shm_sender_cache   P0: items in the ring, which attached readers lease
ring_items         records in a ring with a note each
shm_receiver_cache P1: reads items in place, under leases of its own
factories          creates P0's cache from a configuration

Needs no torch.
"""
