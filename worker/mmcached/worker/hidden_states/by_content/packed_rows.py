"""Decides which of a step's packed rows are written, and where: the same for all keys but for what is there already.

Knows nothing of keys or requests.
"""

from __future__ import annotations

import numpy as np

from mmcached.worker.hidden_states.by_content.layout import Runs
from mmcached.worker.hidden_states.by_content.request_blocks import ABSENT
from mmcached.worker.hidden_states.row_arena import RowArena


class PackedRows:
    """The rows of a step.

    Args:
        found, block_ids: ids of all blocks that the runs touch, run after run; `ABSENT` where there was no room.

    Attributes:
        indexes: index of each row in every arena, negative where there was no room.
        has_sealed: whether any of the blocks is sealed.
        parts: rows `[first, end)` that are written together: all; or, where two runs touch the same block, run after
            run: a row that both have is the first one's if the block is sealed, and the last one's if it is open.
    """

    __slots__ = ("_is_final", "_is_placed", "has_sealed", "indexes", "parts")

    def __init__(self, runs: Runs, found: list[int], block_ids: np.ndarray, is_sealed: np.ndarray) -> None:
        self.indexes = runs.indexes(block_ids)
        self.parts = [(0, runs.num_rows)]
        num_absent = found.count(ABSENT)
        self._is_placed = self.indexes >= 0 if num_absent else None
        # As bytes: a reduction takes longer than all the rest of a step of few rows.
        self.has_sealed = num_absent < len(found) and b"\1" in is_sealed[block_ids].tobytes()
        self._is_final = None
        if self.has_sealed:
            self._is_final = is_sealed[self.indexes // runs.block_size]
            if num_absent:
                self._is_final &= self.indexes >= 0
        if len(set(found)) - (num_absent > 0) < len(found) - num_absent:
            bounds = zip(runs.first_rows.tolist(), runs.counts.tolist(), strict=True)
            self.parts = [(first, first + count) for first, count in bounds]

    @property
    def in_open_blocks(self) -> np.ndarray:
        """Indexes of rows whose tokens may be others than those that were there before."""
        is_open = self.indexes >= 0
        if self._is_final is not None:
            is_open &= ~self._is_final
        indexes: np.ndarray = self.indexes[is_open]
        return indexes

    def to_write(self, arena: RowArena, first: int, end: int) -> tuple[np.ndarray | None, np.ndarray, int]:
        """Return which of rows `[first, end)` an arena gets: those with room, but what a sealed block has already.

        Returns:
            The numbers of these rows (None: all rows of the step), the indexes that they get in the arena, and how many
            rows of the part have room, whether they are to be written or not.
        """
        if self._is_placed is None and self._is_final is None and end - first == len(self.indexes):
            return None, self.indexes, end
        part = slice(first, end)
        indexes = self.indexes[part]
        keep = np.ones(len(indexes), dtype=np.bool_) if self._is_placed is None else self._is_placed[part]
        num_placed = int(np.count_nonzero(keep))
        if self._is_final is not None:
            keep = keep & ~(self._is_final[part] & arena.are_written(indexes))
        return np.flatnonzero(keep) + first, indexes[keep], num_placed
