"""Programs without the service find here processor caches of P0 with vLLM's names, over the same core as the service's.

lru_caches        whole items kept here; or the mirror of what a receiver keeps
shm_sender_cache  items in the ring, with a lease for each attached reader
factories         the cache that a configuration asks for

Native code imports none of it.
"""
