"""The block pool knows each block's state: free, held, or published and evictable.

block_pool          states and reference counts
published           which block holds which content
eviction            the order in which free published blocks are evicted: LRU
segmented_lru       the same, resistant to scans
eviction_policies   the orders by name
"""
