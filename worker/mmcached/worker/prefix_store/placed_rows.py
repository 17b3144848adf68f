"""Lists where the packed rows of one step go, and which of them are to be written.

Knows nothing of keys. What is the same for all keys is looked up once.
"""

from __future__ import annotations

import numpy as np

from mmcached.worker.prefix_store.arena import RowArena
from mmcached.worker.prefix_store.chains import ABSENT
from mmcached.worker.prefix_store.layout import Runs


class PlacedRows:
    """The rows of a step.

    Args:
        found: slots of all blocks that the runs touch, run after run; `ABSENT` where there was no room.
        slots: the same as an array.
        is_named: by slot, whether its rows are final.

    Attributes:
        indexes: of each row in every arena, negative where there was no room.
        has_named: whether any of the blocks is named.
        parts: rows `[first, end)` that are written together: all; or, where two runs touch the same block, run after
            run: a row that both have is the first one's if the block is sealed, and the last one's if it is open.
    """

    __slots__ = ("_is_final", "_is_placed", "has_named", "indexes", "parts")

    def __init__(self, runs: Runs, found: list[int], slots: np.ndarray, is_named: np.ndarray) -> None:
        self.indexes = runs.indexes(slots)
        self.parts = [(0, runs.num_rows)]
        num_absent = found.count(ABSENT)
        self._is_placed = self.indexes >= 0 if num_absent else None
        # As bytes: a reduction takes longer than all the rest of a step of few rows.
        self.has_named = num_absent < len(found) and b"\1" in is_named[slots].tobytes()
        self._is_final = None
        if self.has_named:
            self._is_final = is_named[self.indexes // runs.block_size]
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
        """Return which of rows `[first, end)` an arena gets: those with a place, but what a sealed block has already.

        Returns:
            Which of the packed rows (None: all of them), the indexes that they get in the arena, and how many of the
            part have a place, whether they are to be written or not.
        """
        if self._is_placed is None and self._is_final is None and end - first == len(self.indexes):
            return None, self.indexes, end
        part = slice(first, end)
        indexes = self.indexes[part]
        keep = None if self._is_placed is None else self._is_placed[part]
        num_placed = len(indexes) if keep is None else int(np.count_nonzero(keep))
        if self._is_final is not None:
            is_replay = self._is_final[part] & arena.are_written(indexes)
            if is_replay.any():
                keep = ~is_replay if keep is None else keep & ~is_replay
        if keep is not None:
            return np.flatnonzero(keep) + first, indexes[keep], num_placed
        places = None if len(indexes) == len(self.indexes) else np.arange(first, end)
        return places, indexes, num_placed
