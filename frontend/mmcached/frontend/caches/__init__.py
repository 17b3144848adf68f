"""Processor caches keep the processed items of P0 and say how each travels to an engine, one class for each mode.

item_cache   what the frontend asks of any mode; mode off
local        mode processor_only: items kept here, sent as frames each time
mirrored     mode lru: items kept in the engine, here only their sizes; sent as frames once
stored       mode shm: items kept in the store, sent as tokens
from_config  the cache of a configuration
"""
