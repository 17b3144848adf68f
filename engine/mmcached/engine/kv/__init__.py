"""The KV cache manager gives blocks to requests and finds the longest prefix that need not be computed again.

    manager          the public class: lookups, slots, steps, statistics
    lookup/          the longest cached prefix of a request
    groups/          one module per kind of attention: its hit rule, its release rule
    tables           block tables of all requests            request_blocks
    publisher        makes content findable, at once or when its step is committed
    steps            what steps in flight will publish, and blocks that they still use
    pool/            free, held and published blocks, and the order of eviction
    events           changes in what is published
    hashing/         digests of full blocks
    config, blocks   sizes and groups that come in, block ids that go out
    slots, stats, integrity   argument checks; counts of hits; checks of consistency

Arrows go down only. Knows nothing of scheduling order, sockets or the tensors behind the blocks.
"""
