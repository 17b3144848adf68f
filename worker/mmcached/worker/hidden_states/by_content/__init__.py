"""Stores hidden states by content: blocks of rows under the block hashes of the KV cache, shared by all requests.

    store            public methods: attach, write, read, commit or withdraw, release; their data classes: `records`
    step_writer      writes the rows of a step, and undoes them
    request_blocks   request -> its blocks and their hashes
    block_pool       states of blocks (open, sealed, evictable, free), eviction order
    layout           positions -> row indices; of a step's packed rows: `packed_rows`
    rows_read        the rows gathered by a read

A block is `block_size` consecutive positions of a sequence. Its hash is that of the KV cache manager for the same
tokens (`Request.block_hashes` in the engine): the same hash means the same prefix and the same rows.

    (free) --take--> open --seal--> sealed, held <--> sealed, evictable --evict--> (free)
                       |   hash       by requests        by none
                       +--release--> (free)

* open: without a hash, found only through its one request. A later row of a position replaces an earlier one.
* sealed: found by all. Written rows never change; missing rows may be added.
* A block is stored only after its predecessor. A request that holds a block holds all before it and releases them
later, so the block that has been evictable longest is always the tail of a sequence.

The store knows exactly which rows it has, for any length, also within a block. Lack of space shortens prefixes, for all
keys alike.

Only rank 0 has a store: rows are equal on all ranks. The engine learns from the store's reports which prefixes it has
(`mmcached.engine.TensorPrefixIndex`).
"""
