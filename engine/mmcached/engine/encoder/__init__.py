"""The encoder cache managers count what the workers' encoder caches hold, and choose what a step encodes.

encoder_budget                 how much a step may encode, and how much the cache may hold
encoder_inputs                 the items that one step encodes
encoder_cache_book             what the scheduler asks of either manager
encoder_cache_manager          entries that belong to one request
shared_encoder_cache_manager   entries by content, shared by requests     shared_encoder_entry
encoder_bytes                  the same budgets in bytes
worker_check                   compares a worker's entries with the manager's
"""
