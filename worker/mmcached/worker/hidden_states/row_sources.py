"""Source of the bytes of each row of an arena.

    source   of each row: 0: the arena has its bytes · NOTED: the tensor that was put · n > 0: copy number n
    place    of each row: its number in that tensor, or in that copy's part

The row decides, not the copy: a row that was forgotten, rewritten or moved no longer belongs to its former copy, whose
bytes for it are discarded. So late copies cannot corrupt a block that has another owner.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mmcached.worker.hidden_states.row_arena import RowArena

NOTED = -1


class RowSources:
    """Sources of the rows of one arena; `noted` is the tensor put in the current step, at `noted_indexes`."""

    __slots__ = ("arena", "noted", "noted_indexes", "place", "source")

    def __init__(self, arena: RowArena) -> None:
        self.arena = arena
        self.source = np.zeros(arena.num_rows, dtype=np.int64)
        self.place = np.zeros(arena.num_rows, dtype=np.int64)
        self.noted: torch.Tensor | None = None
        self.noted_indexes: list[np.ndarray] = []

    def note(self, rows: torch.Tensor, indexes: np.ndarray, places: np.ndarray | None) -> None:
        self.arena.mark(indexes)
        self.source[indexes] = NOTED
        self.place[indexes] = np.arange(len(indexes)) if places is None else places
        self.noted = rows.detach()
        self.noted_indexes.append(indexes)

    def of(self, number: int, indexes: Sequence[np.ndarray]) -> np.ndarray:
        """Return those of the given rows that have this source, without duplicates."""
        each = indexes[0] if len(indexes) == 1 else np.unique(np.concatenate(indexes))
        found: np.ndarray = each[self.source[each] == number]
        return found

    def forget_noted(self) -> None:
        self.noted = None
        self.noted_indexes = []

    def clear(self) -> None:
        self.source = np.zeros_like(self.source)
        self.forget_noted()
