"""Counts the leases that one reader incarnation has received: the other half of `leases`, sans I/O.

Leases of one incarnation are numbered 1, 2, 3 … and come through one queue: a number left out is a lost descriptor.

Invariant: the count of a slot never falls, and is at least what this incarnation has given back of the slot.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mmcached.wire.handle import LeaseId


class ReceivedLeases:
    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.last_seq = 0
        self._slot_to_count: Counter[int] = Counter()

    def receive(self, slot: int, lease: LeaseId) -> bool:
        """Count a lease that has just arrived; return False if it is another incarnation's or came before."""
        if lease.incarnation != self.incarnation or lease.seq <= self.last_seq:
            return False
        self.last_seq = lease.seq
        self._slot_to_count[slot] += 1
        return True

    def has_gap_before(self, lease: LeaseId) -> bool:
        """Return whether leases before this one, which is about to be received, are missing."""
        return lease.incarnation == self.incarnation and lease.seq > self.last_seq + 1

    def answer(self, incarnation: int, last_seq: int, slots: Iterable[int]) -> dict[int, int] | None:
        """Answer a barrier: slot -> leases ever received, no gap from now on; None to another incarnation's."""
        if incarnation != self.incarnation:
            return None
        self.last_seq = max(self.last_seq, last_seq)
        return {slot: self._slot_to_count[slot] for slot in slots}
