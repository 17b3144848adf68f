"""Stores per-token model outputs, such as hidden states, for requests that skip a prefix.

    by_content/      TensorPrefixStore: rows under the block hashes of the KV cache
    schema           shape and dtype of a key's rows
    row_arena        the rows of one key in host memory, and which rows were written
    pending_rows     rows on their way into arenas: one copy per step, awaited by readers only; see `row_sources`
    device_copy      the copy itself: device -> pinned memory -> arena, with buffers of `buffer_pool`

`mmcached.compat.omni_tensor_prefix_cache` stores rows under KV slots, in the same arenas, for engines without block
hashes. By slot, rows share the lifetime of KV blocks: the next owner of a slot overwrites them, and each hit must be
reported. By content, a block of rows is found by its hash until it is evicted.

Both guarantee: no invented rows (a row that was not written raises `MissingRows` with the range, never gives zeros), no
rounding, no broadcast or truncation, copies only.

Imports torch, numpy, msgspec and mmcached's errors only, so that other engines can embed it.
"""

from mmcached.worker.hidden_states.by_content.records import RefusedRows, Report, RowChunk, RowSpan, RowStoreStats
from mmcached.worker.hidden_states.by_content.rows_read import RowsRead
from mmcached.worker.hidden_states.by_content.store import TensorPrefixStore
from mmcached.worker.hidden_states.schema import KeySpec

__all__ = [
    "KeySpec",
    "RefusedRows",
    "Report",
    "RowChunk",
    "RowSpan",
    "RowStoreStats",
    "RowsRead",
    "TensorPrefixStore",
]
