"""Rows of deferred keys that lie where they were made until somebody needs them: by slot, as all rows do.

    stage ──> staged ──commit of a request, a hit, no more room──> written, all together: one transfer for each key
                 └── the slot is written anew, its request discarded ──> nobody's

    pieces    of each key: copies of what the steps have staged, one after the other, on their device
    slots     of each of their rows; -1: of none
    number    (num_slots,) which of these rows a slot has; -1: none

Knows nothing of positions or of prefixes. Invariant: a slot has at most one staged row, the last one, and only while
nobody has written the slot since. Of a key, no more rows are staged than there are slots, but for those of one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from mmcached.wire.errors import InvariantError
from mmcached.worker.omni.keys import KeyBook

MAX_PIECES = 32
"""So many tensors for each key; then they become one."""


@dataclass(slots=True)
class _StagedKey:
    number: np.ndarray
    pieces: list[torch.Tensor] = field(default_factory=list)
    slots: list[np.ndarray] = field(default_factory=list)
    num_rows: int = 0

    def add(self, rows: torch.Tensor, slots: np.ndarray) -> None:
        """Take over `rows`; `rows[i]` is that of `slots[i]` now."""
        bound = np.flatnonzero(slots >= 0)
        self.number[slots[bound]] = self.num_rows + bound
        self.pieces.append(rows)
        self.slots.append(slots)
        self.num_rows += len(rows)

    def join(self) -> None:
        self.pieces = [torch.cat(self.pieces)]
        self.slots = [np.concatenate(self.slots)]

    def live(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which rows belong to a slot, and to which."""
        slots = np.concatenate(self.slots) if self.slots else np.empty(0, dtype=np.int64)
        # The number at -1 is that of the last slot, and never that of a row of no slot.
        live = np.flatnonzero(self.number[slots] == np.arange(len(slots)))
        return live, slots[live]


class StagedRows:
    """What is staged, by key and slot; and which request has staged it.

    Args:
        keys: every key that is staged is known there, and stays so.
    """

    def __init__(self, keys: KeyBook, num_slots: int) -> None:
        self._keys = keys
        self._num_slots = num_slots
        self._of_key: dict[str, _StagedKey] = {}
        self._of_request: dict[str, list[tuple[_StagedKey, int, np.ndarray]]] = {}

    def stage(self, key: str, rows: torch.Tensor, parts: Sequence[tuple[str, int, np.ndarray]]) -> None:
        """Keep a copy of a step's rows.

        Args:
            parts: request, its first row and the slots of its rows, `(rows,)` int64.
        """
        staged = self._of_key.get(key)
        if staged is None:
            staged = self._of_key[key] = _StagedKey(np.full(self._num_slots, -1, dtype=np.int64))
        if staged.num_rows + len(rows) > self._num_slots:
            self.write_out()
        copied = rows.detach().clone()
        slots = np.full(len(rows), -1, dtype=np.int64)
        for req_id, start, own in parts:
            slots[start : start + len(own)] = own
            self._of_request.setdefault(req_id, []).append((staged, staged.num_rows + start, own))
        staged.add(copied, slots)
        if len(staged.pieces) > MAX_PIECES:
            staged.join()

    def commit(self, req_ids: Iterable[str]) -> None:
        """Write all rows, if any of these requests has staged some."""
        if any(req_id in self._of_request for req_id in req_ids):
            self.write_out()

    def settle(self, slots: np.ndarray) -> None:
        """See that what is staged for these slots can be read where rows are."""
        if any(staged.num_rows and (staged.number[slots] >= 0).any() for staged in self._of_key.values()):
            self.write_out()

    def write_out(self) -> None:
        """Write all rows to where they can be read. If a transfer fails, that key and those behind it stay staged."""
        for key, staged in self._of_key.items():
            live, slots = staged.live()
            if len(live):
                rows = torch.cat(staged.pieces).cpu()
                self._keys.known[key].write(slots, rows[torch.from_numpy(live)])
                staged.number[slots] = -1
            staged.pieces, staged.slots, staged.num_rows = [], [], 0
        self._of_request.clear()

    def discard(self, req_id: str) -> None:
        """Forget what a request has staged; an unknown one changes nothing."""
        for staged, first, slots in self._of_request.pop(req_id, ()):
            is_own = staged.number[slots] == np.arange(first, first + len(slots))
            staged.number[slots[is_own]] = -1

    def forget(self, slots: np.ndarray) -> None:
        """Say that nothing is staged for `slots`."""
        for staged in self._of_key.values():
            if staged.num_rows:
                staged.number[slots] = -1

    def clear(self) -> None:
        self._of_key.clear()
        self._of_request.clear()

    @property
    def num_rows(self) -> int:
        """Rows that slots have."""
        return sum(len(staged.live()[0]) for staged in self._of_key.values())

    def check_integrity(self) -> None:
        for key, staged in self._of_key.items():
            num_held, num_named = sum(map(len, staged.pieces)), sum(map(len, staged.slots))
            if not num_held == num_named == staged.num_rows:
                raise InvariantError(f"{key!r}: {num_held} rows, {num_named} slots, {staged.num_rows} are counted")
            num_bound = int(np.count_nonzero(staged.number >= 0))
            if num_bound != len(staged.live()[0]):
                raise InvariantError(f"{key!r}: {num_bound} slots have a row, {len(staged.live()[0])} rows a slot")
