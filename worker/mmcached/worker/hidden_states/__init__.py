"""Keeps what models give per token besides the next one, for requests that skip a prefix.

    by_content/      TensorPrefixStore: rows under the block hashes of the KV cache
    schema           what a row of a key looks like
    row_arena        the rows of one key in host memory, and which of them were written
    pending_rows     rows on their way into arenas: one copy for each step, waited for by readers only   row_sources
    device_copy      the copy itself: device -> pinned memory -> arena          buffer_pool

`mmcached.compat.omni_tensor_prefix_cache` keeps rows under KV slots, for engines that know nothing else. Both keep rows
in the same arenas, and write and read them the same way; they differ in how a row is found. By slot, rows live and die
with KV blocks, whoever is given a slot overwrites it, and each hit must be told. By content, a block of rows is found
by its hash as long as there is room for it.

Both promise: no made-up rows (a row that was not written is `MissingRows` with the range, never zeros), no rounding,
nothing broadcast or truncated, copies only.

Imports torch and numpy, and of mmcached only the errors, with msgspec: an engine of another house can embed it.
"""

from mmcached.worker.hidden_states.by_content.records import Refusal, Report, RowChunk, RowSpan, StoreStats
from mmcached.worker.hidden_states.by_content.rows_read import RowsRead
from mmcached.worker.hidden_states.by_content.store import TensorPrefixStore
from mmcached.worker.hidden_states.schema import KeySpec

__all__ = [
    "KeySpec",
    "Refusal",
    "Report",
    "RowChunk",
    "RowSpan",
    "RowsRead",
    "StoreStats",
    "TensorPrefixStore",
]
