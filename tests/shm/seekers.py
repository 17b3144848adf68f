"""A reader that looks keys up and takes leases by itself, as a client's session does."""

from __future__ import annotations

from mmcached.shm import ObjectStoreReader, ReaderEntry, RingReader
from mmcached.shm.ring.key_index import key_digest
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.shm.rings import Taking


class Seeker:
    """An entry of this process and a mapping; the ring's writer has to attach it."""

    def __init__(self, announcement: RingAnnouncement) -> None:
        self.entry = ReaderEntry.attach(announcement)
        self._mapping = RingReader.open(announcement)
        self._store = ObjectStoreReader(self._mapping)

    def take(self, key: str) -> Handle | None:
        """Find a key and take a lease on its record."""
        handle = self._mapping.look.find(key_digest(key))
        if handle is None:
            return None
        if all(self.entry.take_leases([Taking(handle)], self._mapping.look)):
            return handle
        self.entry.give_back(handle)
        return None

    def value(self, handle: Handle) -> int:
        """Return what all bytes of a record are; fail if they differ."""
        found = self._store.get(handle, tensors="numpy", copy=True)["x"]
        assert found.min() == found.max()
        return int(found[0])

    def finds(self, key: str) -> bool:
        """Return whether the index shows a record of a key."""
        return self._mapping.look.find(key_digest(key)) is not None

    def look(self, key: str) -> int | None:
        """Find a record and read it; None if it is not there."""
        handle = self.take(key)
        if handle is None:
            return None
        value = self.value(handle)
        self.entry.give_back(handle)
        return value

    def close(self) -> None:
        self._store.close()
        self.entry.close()
