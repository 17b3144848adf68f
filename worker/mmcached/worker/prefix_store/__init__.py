"""What models give per token besides the next one, kept for requests that skip a prefix: rows by content, not by slot.

    store        the face: attach, write, read, commit or withdraw, release          records
      step_writer   what a step writes, and how it is undone
      schema     what the value of a key must look like
      chains     request -> its blocks and their names
        slots    which block is open, sealed, evictable or free, and which is given up first
      staging    rows on their way (placed_rows): copied at once or deferred, never waited for but by readers
        shipments  copies under way                   transfer: device -> host memory
        parcels  which rows an arena lacks yet, and where these are
      layout     positions of a step -> rows of an arena
      arena      the rows of one key, and which of them were written
      values     what is kept whole: per request, global, lists          ownership
      gather     reading: one gather per key          rows_read, buffers

A block is `block_size` consecutive positions of a sequence. Its name is the digest that the KV cache manager gives the
same tokens (`Request.block_hashes` in the engine): the same name, the same whole prefix, the same rows.

    (free) --take--> open --seal--> sealed, held <--> sealed, evictable --evict--> (free)
                       |   named      by requests        by nobody
                       +--release--> (free)

* open: nameless, found through its one request only. A later row of a position replaces an earlier one.
* sealed: found by all. Rows that were written never change; rows that are lacking may be added.
* A block is kept only behind its predecessor. Who holds a block holds all before it and lets go of them later, so the
  evictable of longest standing is always the tail of a sequence.

The one question is answered exactly: which rows are there, for any length, also within a block. A row that was not
written is `MissingRows` with the range, never zeros. Want of room shortens prefixes, for all keys alike.

Beside it stands `mmcached.worker.OmniTensorPrefixCache`, addressed by KV slot, for engines that know
nothing but slots: its rows live and die with KV blocks, whoever is given a slot overwrites it, and it must be told
about each hit. Where digests are known, this package takes its place; they share no state and nothing is in both. What
they have in common are the promises: no made-up rows, no rounding, nothing broadcast or truncated, copies only.

Only rank 0 keeps a store: rows are equal on all ranks. Which prefixes it has, the engine reads off its reports
(`mmcached.engine.TensorPrefixIndex`). Knows nothing of plans, messages or models.
"""

from mmcached.worker.prefix_store.records import Refusal, Report, RowChunk, RowSpan, StoreStats
from mmcached.worker.prefix_store.rows_read import RowsRead
from mmcached.worker.prefix_store.schema import CopyPolicy, KeyKind, KeySpec
from mmcached.worker.prefix_store.store import TensorPrefixStore

__all__ = [
    "CopyPolicy",
    "KeyKind",
    "KeySpec",
    "Refusal",
    "Report",
    "RowChunk",
    "RowSpan",
    "RowsRead",
    "StoreStats",
    "TensorPrefixStore",
]
