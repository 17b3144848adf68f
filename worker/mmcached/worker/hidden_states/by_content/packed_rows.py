"""Selects which of a step's packed rows are written, and where: equal for all keys except for rows written before."""

from __future__ import annotations

import numpy as np

from mmcached.worker.hidden_states.by_content.layout import Runs
from mmcached.worker.hidden_states.by_content.request_blocks import ABSENT
from mmcached.worker.hidden_states.row_arena import RowArena


class PackedRows:
    """Rows of a step; `found` and `block_ids` list the blocks of all runs, `ABSENT` for blocks without space.

    Attributes:
        indexes: index of each row in every arena, negative without space.
        has_sealed: whether any of the blocks is sealed.
        parts: rows `[first, end)` that are written together: all; or, if two runs touch the same block, run after run:
            a row that both have is the first run's if the block is sealed, and the last run's if it is open.
    """

    __slots__ = ("_is_final", "_is_placed", "has_sealed", "indexes", "parts")

    def __init__(self, runs: Runs, found: list[int], block_ids: np.ndarray, is_sealed: np.ndarray) -> None:
        self.indexes = runs.indexes(block_ids)
        self.parts = [(0, runs.num_rows)]
        num_absent = found.count(ABSENT)
        self._is_placed = self.indexes >= 0 if num_absent else None
        # As bytes: a numpy reduction takes longer than the rest of a step of few rows.
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
        """Indices of rows whose tokens may differ from those stored before."""
        is_open = self.indexes >= 0
        if self._is_final is not None:
            is_open &= ~self._is_final
        indexes: np.ndarray = self.indexes[is_open]
        return indexes

    def to_write(self, arena: RowArena, first: int, end: int) -> tuple[np.ndarray | None, np.ndarray, int]:
        """Select the rows of `[first, end)` that an arena gets: those with space, except rows that a sealed block has.

        Returns the numbers of these rows (None: all rows of the step), their indices in the arena, and the number of
        rows of the part that have space, written or not.
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
