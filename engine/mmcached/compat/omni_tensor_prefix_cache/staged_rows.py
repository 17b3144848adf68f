"""Keeps rows of deferred keys on their device until they are needed, by slot.

    stage ──> staged ──commit of a request, a hit, no more room──> written, all together: one copy for all keys
                 └── the slot is written again, or its request discarded ──> dropped

    rows      copies of a key's staged rows of all steps, one after the other, on their device
    number    (num_slots,) number of the row of each slot; -1: no staged row

Knows nothing of positions or of prefixes. Invariant: a slot has at most one staged row, the last one, and only while
the slot has not been written since. For each key at most as many rows are staged as there are slots, plus those of one
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from mmcached.wire.errors import InvariantError
from mmcached.worker.hidden_states.pending_rows import PendingRows
from mmcached.worker.hidden_states.row_arena import RowArena


class StagedKey:
    """The staged rows of one key: the first `num_rows` of `rows`."""

    def __init__(self, num_slots: int) -> None:
        self.number = np.full(num_slots, -1, dtype=np.int64)
        self.rows = torch.empty(0)
        self.num_rows = 0

    def add(self, rows: torch.Tensor) -> None:
        """Append copies of rows."""
        end = self.num_rows + len(rows)
        if not self.num_rows:
            self.rows = rows.clone(memory_format=torch.contiguous_format)
        else:
            if end > len(self.rows):  # twice as much, so that each row is moved once, on average
                larger = self.rows.new_empty((max(end, min(2 * end, len(self.number))), *self.rows.shape[1:]))
                larger[: self.num_rows] = self.rows[: self.num_rows]
                self.rows = larger
            self.rows[self.num_rows : end] = rows
        self.num_rows = end

    def clear(self) -> None:
        self.number[:] = -1
        self.rows, self.num_rows = torch.empty(0), 0


class _Share(NamedTuple):
    """Rows that a request has staged: row numbers from `first` on, for these slots."""

    staged: StagedKey
    first: int
    slots: np.ndarray


class StagedRows:
    """Staged rows of all keys, with the request that has staged each row.

    Args:
        arenas: By key; every key that is staged is known there, and stays known.
        pending: Copies staged rows to the arenas.
    """

    def __init__(self, arenas: Mapping[str, RowArena], pending: PendingRows, num_slots: int) -> None:
        self._arenas = arenas
        self._pending = pending
        self._num_slots = num_slots
        self._of_key: dict[str, StagedKey] = {}
        self._of_request: dict[str, list[_Share]] = {}

    @property
    def num_rows(self) -> int:
        """Number of rows that belong to slots."""
        return sum(int(np.count_nonzero(staged.number >= 0)) for staged in self._of_key.values())

    def stage(self, key: str, rows: torch.Tensor, parts: Sequence[tuple[str, int, np.ndarray]]) -> None:
        """Keep a copy of a step's rows.

        Args:
            parts: request, its first row and the slots of its rows, `(rows,)` int64.
        """
        staged = self._of_key.setdefault(key, StagedKey(self._num_slots))
        if staged.num_rows + len(rows) > self._num_slots:
            self.write_out()
        first = staged.num_rows
        staged.add(rows.detach())
        for req_id, start, slots in parts:
            staged.number[slots] = np.arange(first + start, first + start + len(slots))
            self._of_request.setdefault(req_id, []).append(_Share(staged, first + start, slots))

    def commit(self, req_ids: Iterable[str]) -> None:
        """Write all rows if any of these requests has staged rows."""
        if any(req_id in self._of_request for req_id in req_ids):
            self.write_out()

    def settle(self, slots: np.ndarray) -> None:
        """Write all staged rows if these slots have any, so that they can be read from the arenas."""
        if any(staged.num_rows and (staged.number[slots] >= 0).any() for staged in self._of_key.values()):
            self.write_out()

    def write_out(self) -> None:
        """Write all rows to the arenas. On failure all stay staged."""
        with self._pending:
            for key, staged in self._of_key.items():
                slots = np.flatnonzero(staged.number >= 0)
                if len(slots):
                    slots = slots[np.argsort(staged.number[slots])]
                    self._pending.put(self._arenas[key], staged.rows[: staged.num_rows], slots, staged.number[slots])
        for staged in self._of_key.values():
            staged.clear()
        self._of_request.clear()

    def discard(self, req_id: str) -> None:
        """Drop a request's staged rows; an unknown request changes nothing."""
        for staged, first, slots in self._of_request.pop(req_id, ()):
            is_own = staged.number[slots] == np.arange(first, first + len(slots))
            staged.number[slots[is_own]] = -1

    def forget(self, slots: np.ndarray) -> None:
        """Drop the staged rows of `slots`."""
        for staged in self._of_key.values():
            if staged.num_rows:
                staged.number[slots] = -1

    def clear(self) -> None:
        self._of_key.clear()
        self._of_request.clear()

    def check_integrity(self) -> None:
        """Raise InvariantError if two slots have the same row, or more rows are kept than allowed."""
        for key, staged in self._of_key.items():
            numbers = staged.number[staged.number >= 0]
            if len(staged.rows) > max(staged.num_rows, self._num_slots):
                raise InvariantError(f"{key!r}: there is memory for {len(staged.rows)} staged rows")
            if len(np.unique(numbers)) != len(numbers) or (len(numbers) and numbers.max() >= staged.num_rows):
                raise InvariantError(f"{key!r}: {len(numbers)} slots have the same of {staged.num_rows} staged rows")
        if len(self._of_request) > self._num_slots:
            raise InvariantError(f"{len(self._of_request)} requests have staged rows for {self._num_slots} slots")
