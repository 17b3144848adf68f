"""Encoder cache managers: track the workers' encoder caches, and select the items that a step encodes.

encoder_budget                 embeddings per step, and capacity of the cache
encoder_inputs                 the items that one step encodes
encoder_cache_table            the cache's entries, see `encoder_entry`, and the scheduler's interface
shared_encoder_cache_manager   entries by content, shared by requests
encoder_cache_manager          entries that belong to one request
worker_check                   compares a worker's entries with the manager's
"""
