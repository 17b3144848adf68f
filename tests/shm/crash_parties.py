"""Both sides of a crash test: a child that dies at a named point, and a reader in this process that must not suffer."""

from __future__ import annotations

from typing import Any

import msgspec

from mmcached.shm import ObjectStoreReader, ReaderEntry, RingReader
from mmcached.shm.crash_points import VARIABLE
from mmcached.wire.errors import StaleHandle
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.shm.crash_child import is_record_of
from tests.shm.processes import Child
from tests.shm.rings import Taking


class Party(Child):
    """A `crash_child`.

    Args:
        crash_at: where it dies by itself; nowhere if empty.
        process_group: as `Popen` takes it; 0 makes it the leader of a new one.
    """

    def __init__(self, role: str, crash_at: str = "", *, process_group: int | None = None) -> None:
        super().__init__("tests.shm.crash_child", role, environment={VARIABLE: crash_at}, process_group=process_group)


class Survivor:
    """The reader in this process: what it has leased must stay what it was, whatever becomes of the writer."""

    def __init__(self, announcement: RingAnnouncement) -> None:
        self.entry = ReaderEntry.attach(announcement)
        self._reader = RingReader.open(announcement)
        self._store = ObjectStoreReader(self._reader)
        self._value_to_handle: dict[int, Handle] = {}
        self._held: list[tuple[int, Any]] = []

    def receive(self, value: int, place: Any, *, keep: bool = False) -> None:
        handle = msgspec.convert(place, Handle)
        assert all(self.entry.take_leases([Taking(handle)], self._reader.look))
        self._value_to_handle[value] = handle
        record = self._store.get(handle, tensors="numpy")
        assert is_record_of(value, record)
        if keep:
            self._held.append((value, record))
        else:
            del record
            self.entry.give_back(handle)

    def check(self) -> None:
        """What is held is whole; what was ever received is whole or a stale handle, never other bytes."""
        assert all(is_record_of(value, record) for value, record in self._held)
        for value, handle in self._value_to_handle.items():
            try:
                assert is_record_of(value, self._store.get(handle, tensors="numpy"))
            except StaleHandle:
                assert value not in [held for held, _ in self._held]

    def give_all_back(self) -> None:
        for value, _ in self._held:
            self.entry.give_back(self._value_to_handle[value])
        self._held.clear()

    def close(self) -> None:
        self._held.clear()
        self._store.close()
        self.entry.close()
