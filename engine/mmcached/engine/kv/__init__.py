"""Which KV blocks each request holds, and which prefixes need not be computed again: books of whole numbers.

    manager          the face: lookups, slots, steps, statistics
      lookups        the longest cached prefix: found, remembered, checked
        memo         results of lookups that are asked again and again
        coordinator  the longest hit that all groups of layers agree on
          groups     one module per kind of group: its hit rule, its release rule
      tables         who holds which blocks
        request_blocks what one request holds, and how far nothing needs to be looked at
      publisher      making content findable, at once or when its step is committed
        steps        what steps in flight would publish, and blocks that they still use
      slots, stats, integrity   numbers that may be asked for; counts of hits; do the books agree
    block_pool       who is free, held, published
      published      which block holds which content
      eviction, segmented_lru, eviction_policies   in which order free published blocks are given up
    events           what has changed in what is published
    block_hash, token_bytes   digests of full blocks    block_keys   what besides tokens goes into them
    config, blocks   sizes and groups that come in, block ids that go out

Arrows go down only. Knows nothing of scheduling order, sockets or the tensors behind the blocks.
"""
