"""The encoder cache managers count what the workers' encoder caches hold, and choose what a step encodes.

encoder_budget                 how much a step may encode, and how much the cache may hold
encoder_inputs                 the items that one step encodes
encoder_cache_table            the entries, and all that the scheduler asks of them     encoder_entry
shared_encoder_cache_manager   entries by content, shared by requests
encoder_cache_manager          entries that belong to one request
worker_check                   compares a worker's entries with the manager's
"""
