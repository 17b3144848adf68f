"""Reading: the rows of many spans, one gather for each key.

Knows nothing of names, or of who holds what. Whole blocks are copied where most of their rows are wanted, and single
rows otherwise; a span's rows follow each other either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from mmcached.worker.prefix_store.arena import RowArena
from mmcached.worker.prefix_store.buffers import BufferPool
from mmcached.worker.prefix_store.layout import Runs
from mmcached.worker.prefix_store.rows_read import GatheredKey, MissingRun, RowsRead


def gather(
    arenas: Iterable[RowArena],
    runs: Runs,
    *,
    slots: np.ndarray,
    indexes: np.ndarray,
    firsts: Sequence[int],
    buffers: BufferPool[np.ndarray],
) -> RowsRead:
    """Copy the rows of each run out of each arena, into buffers of the pool.

    Args:
        runs: one for each span.
        slots: of the blocks of all runs.
        indexes: of their rows; the bytes of those that were written are in the arenas.
        firsts: the first position of each run, to tell what is missing.
    """
    in_blocks = 2 * runs.num_rows > len(slots) * runs.block_size
    first_rows, num_rows = runs.first_rows, runs.num_rows
    if in_blocks:
        first_rows, num_rows = runs.first_rows_in_blocks(), len(slots) * runs.block_size
    keys: dict[str, GatheredKey] = {}
    taken = []
    for arena in arenas:
        missing = _missing(arena.are_written(indexes), runs, firsts)
        if len(missing) == len(firsts):
            keys[arena.name] = GatheredKey(torch.empty((0, *arena.shape), dtype=arena.dtype), missing)
            continue
        buffer = buffers.take(num_rows * arena.row_nbytes)
        taken.append(buffer)
        if in_blocks:
            arena.take_blocks(slots, buffer)
        else:
            arena.take_rows(indexes, buffer)
        flat = torch.from_numpy(buffer[: num_rows * arena.row_nbytes])
        keys[arena.name] = GatheredKey(flat.view(arena.dtype).view(num_rows, *arena.shape), missing)
    return RowsRead(buffers, taken, keys, first_rows, runs.counts, has_gaps=in_blocks)


def _missing(written: np.ndarray, runs: Runs, firsts: Sequence[int]) -> dict[int, MissingRun]:
    """Return of each span that lacks rows the first run of positions without one."""
    missing: dict[int, MissingRun] = {}
    if not written.all():
        spans = zip(firsts, runs.first_rows.tolist(), runs.counts.tolist(), strict=True)
        for number, (position, start, count) in enumerate(spans):
            own = written[start : start + count]
            if not own.all():
                first = int(own.argmin())
                length = int(own[first:].argmax()) or count - first
                missing[number] = (position + first, position + first + length)
    return missing
