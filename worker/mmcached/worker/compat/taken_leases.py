"""TakenLeases has a receiver read under each lease once, whatever order the leases come in.

Items of several requests may overtake each other here, unlike in the service, where one queue orders them (see
`mmcached.shm.ring.received`).

    taken     1 2 3 . 5 6 . . 9       up to 3: `_all_up_to`; 5, 6, 9: `_beyond`

Invariant: `_beyond` holds only numbers above `_all_up_to` + 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mmcached.wire.handle import LeaseId


class TakenLeases:
    """The leases of one incarnation, by their numbers."""

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self._all_up_to = 0
        self._beyond: set[int] = set()
        self._slot_to_count: Counter[int] = Counter()

    def take(self, slot: int, lease: LeaseId) -> bool:
        """Count a lease; return whether it is ours and new. Any other must not be given back."""
        if lease.incarnation != self.incarnation or lease.seq <= self._all_up_to or lease.seq in self._beyond:
            return False
        self._beyond.add(lease.seq)
        self._advance()
        self._slot_to_count[slot] += 1
        return True

    def answer(self, incarnation: int, last_seq: int, slots: Iterable[int]) -> dict[int, int] | None:
        """Answer a barrier: slot -> leases ever taken. What has not come up to `last_seq` never will be taken.

        Returns:
            None if it asks another incarnation.
        """
        if incarnation != self.incarnation:
            return None
        self._all_up_to = max(self._all_up_to, last_seq)
        self._beyond = {seq for seq in self._beyond if seq > self._all_up_to}
        self._advance()
        return {slot: self._slot_to_count[slot] for slot in slots}

    def _advance(self) -> None:
        while self._all_up_to + 1 in self._beyond:
            self._all_up_to += 1
            self._beyond.remove(self._all_up_to)
