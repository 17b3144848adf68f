"""The processor caches of P0, one for each mode, and how items reach an engine in it.

sender_cache           processed items in the ring                  mode shm
lru_sender_cache       the mirror of what the engine holds          mode lru
processor_only_cache   processed items, here                        mode processor_only
lru_processor_cache    what the last two have in common
factories              chooses the cache that a configuration asks for
routes                 how an item travels in each mode
"""
