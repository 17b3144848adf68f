"""KV cache manager: allocates KV blocks to requests and finds cached prefixes.

kv_cache            the class that the scheduler uses; `mmcached.compat.kv_cache_manager` has vLLM's method names
lookup/             the longest cached prefix of a request
groups/             hit rule and release rule of each kind of attention
tables              block tables of all requests; `request_blocks`: those of one request
publisher           publishes full blocks, at once or when their step is committed
steps               blocks that the open step will publish, and blocks that it still uses
pool/               free, referenced and published blocks; eviction order
events              KV events
request_hashes      block hashes of requests
config, blocks      configuration, and the block ids returned to callers
slot_allocator      gives requests slots; `stats`: hit statistics
"""
