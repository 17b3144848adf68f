"""Keeps hidden states by content: blocks of rows under the block hashes of the KV cache, found by all requests.

    store            the public methods: attach, write, read, commit or withdraw, release          records
    step_writer      what a step writes, and how it is undone
    request_blocks   request -> its blocks and their hashes
    block_pool       which block is open, sealed, evictable or free, and which is given up first
    layout           positions -> indexes of rows        packed_rows
    rows_read        what a read has gathered

A block is `block_size` consecutive positions of a sequence. Its hash is that of the KV cache manager for the same
tokens (`Request.block_hashes` in the engine): the same hash, the same whole prefix, the same rows.

    (free) --take--> open --seal--> sealed, held <--> sealed, evictable --evict--> (free)
                       |   hash       by requests        by nobody
                       +--release--> (free)

* open: without a hash, found through its one request only. A later row of a position replaces an earlier one.
* sealed: found by all. Rows that were written never change; rows that are lacking may be added.
* A block is kept only behind its predecessor. Who holds a block holds all before it and lets go of them later, so the
  evictable of longest standing is always the tail of a sequence.

The one question is answered exactly: which rows are there, for any length, also within a block. Want of room shortens
prefixes, for all keys alike.

Only rank 0 keeps a store: rows are equal on all ranks. The engine reads off the store's reports which prefixes it has
(`mmcached.engine.TensorPrefixIndex`). Knows nothing of plans, messages or models.
"""
