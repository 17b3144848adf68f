"""Processor caches: keep the processed items of P0 and choose how each travels to an engine, one class per mode.

item_cache   the interface of every mode, and mode `off`
local        mode `processor_only`: items kept here, sent as frames each time
mirrored     mode `lru`: items kept in the engine, only their sizes here; sent as frames once
stored       mode `shm`: items kept in the store, sent as tokens
item_records items as records of the store
from_config  the cache of a configuration
"""
