"""Block pool: state of each KV block (free, referenced, published) and eviction order.

block_pool          states and reference counts
published           maps between content keys and blocks
eviction            eviction order of free published blocks: LRU
segmented_lru       a scan-resistant eviction order
eviction_policies   eviction orders by name
"""
