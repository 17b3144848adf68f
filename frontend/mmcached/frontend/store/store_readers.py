"""Knows which clients read the store's ring by themselves.

A client takes an entry of the ring and says so; the entry must hold the incarnation. From then on it looks keys up and
takes leases without asking; its death is seen by the entry's lock.
"""

from __future__ import annotations

from mmcached.frontend.connections.rings import NoRing
from mmcached.shm import ReaderStopped, RingWriter


class StoreReaders:
    """The readers of one ring, by their clients: one each."""

    def __init__(self) -> None:
        self.ring: RingWriter | NoRing = NoRing()
        self._client_to_entry: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._client_to_entry)

    def clients(self) -> set[str]:
        return set(self._client_to_entry)

    def attach(self, client_id: str, *, epoch: int, reader_id: int, incarnation: int) -> bool:
        """Accept a reader that says it has taken an entry, also if it says so again; return whether that is true.

        Args:
            epoch: of the ring that it means.
        """
        ring, entry = self.ring, (reader_id, incarnation)
        if isinstance(ring, NoRing) or epoch != ring.announcement.epoch:
            return False
        if any(known == entry and other != client_id for other, known in self._client_to_entry.items()):
            return False
        if not ring.attach(reader_id, incarnation):
            self.leave(client_id)
            return False
        self._client_to_entry[client_id] = entry
        return True

    def reads(self, client_id: str, incarnation: int) -> bool:
        """Return whether this incarnation of a client reads the ring by itself."""
        entry = self._client_to_entry.get(client_id)
        return entry is not None and entry[1] == incarnation

    def leave(self, client_id: str) -> None:
        """Forget a client; what it holds ends with its entry's lock."""
        self._client_to_entry.pop(client_id, None)

    def take_dead(self) -> list[tuple[str, str]]:
        """Look at the entries' locks and words; forget the readers that are fenced or dead; return them, and why."""
        dead = []
        for event in self.ring.poll_deaths():
            for client_id, entry in list(self._client_to_entry.items()):
                if entry == (event.reader_id, event.incarnation):
                    self.leave(client_id)
                    reason = event.reason if isinstance(event, ReaderStopped) else "no process holds its entry"
                    dead.append((client_id, reason))
        return dead
