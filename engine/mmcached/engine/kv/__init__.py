"""The KV cache gives blocks to requests and finds the longest prefix that need not be computed again.

    kv_cache         the class that the scheduler uses; `mmcached.compat.kv_cache_manager` has vLLM's
    lookup/          the longest cached prefix of a request
    groups/          one module per kind of attention: its hit rule, its release rule
    tables           block tables of all requests             request_blocks   those of one
    publisher        makes content findable, at once or when its step is committed
    steps            what the open step will publish, and blocks that it still uses
    pool/            free, held and published blocks, and the order of eviction
    events           changes in what is published
    request_hashes   the block hashes of requests
    config, blocks   sizes and groups that come in, block ids that go out
    slot_counts, stats, integrity   argument checks; counts of hits; checks of consistency

Arrows go down only. Knows nothing of scheduling order, sockets or the tensors behind the blocks.
"""
