"""Readers of a ring: which client has which reader entry.

A reader takes an entry of the ring and announces it; the entry must hold the announced incarnation. A reader's death is
seen by its entry's lock.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from mmcached.frontend.connections.rings import NoRing
from mmcached.shm import ReaderStopped, RingWriter

OwnerT = TypeVar("OwnerT", bound=Hashable)


class EntryOwners(Generic[OwnerT]):
    """The owners of the entries of one ring, at most one entry each."""

    def __init__(self) -> None:
        self.ring: RingWriter | NoRing = NoRing()
        self._owner_to_entry: dict[OwnerT, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._owner_to_entry)

    def owners(self) -> set[OwnerT]:
        return set(self._owner_to_entry)

    def attach(self, owner: OwnerT, *, epoch: int, reader_id: int, incarnation: int) -> bool:
        """Accept a reader that announces its entry, also repeatedly; return whether the announcement is true.

        Args:
            epoch: Epoch of the ring that the reader has mapped.
        """
        ring, entry = self.ring, (reader_id, incarnation)
        if isinstance(ring, NoRing) or epoch != ring.announcement.epoch:
            return False
        if any(known == entry and other != owner for other, known in self._owner_to_entry.items()):
            return False
        if not ring.readers.attach(reader_id, incarnation):
            self.leave(owner)
            return False
        self._owner_to_entry[owner] = entry
        return True

    def has(self, owner: OwnerT, incarnation: int) -> bool:
        entry = self._owner_to_entry.get(owner)
        return entry is not None and entry[1] == incarnation

    def leave(self, owner: OwnerT) -> None:
        """Forget an owner; its leases end with its entry's lock."""
        self._owner_to_entry.pop(owner, None)

    def take_dead(self) -> list[tuple[OwnerT, str]]:
        """Check the entries' locks and words; forget readers that are fenced or dead; return them with the reasons."""
        dead = []
        for event in () if isinstance(self.ring, NoRing) else self.ring.readers.poll_deaths():
            for owner, entry in list(self._owner_to_entry.items()):
                if entry == (event.reader_id, event.incarnation):
                    self.leave(owner)
                    reason = event.reason if isinstance(event, ReaderStopped) else "no process holds its entry"
                    dead.append((owner, reason))
        return dead
