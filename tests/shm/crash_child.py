"""A writer, reader or worker that dies at a named point: one JSON command per line, one JSON answer each.

    MMC_CRASH_AT=label python -m tests.shm.crash_child writer | reader

The points between the ring and a socket are taken here, where the answer stands for the message.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from mmcached.shm import HostCalls, ObjectStoreReader, ObjectStoreWriter, ReaderEntry, RingReader, RingWriter, sweep
from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.segment.layout import Layout
from mmcached.shm.segment.segment import WriterSegment
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.shm.rings import Taking

LAYOUT = Layout(data_bytes=1 << 14, num_slots=16, max_readers=3)
EPOCH = 7


def record_of(value: int) -> dict[str, Any]:
    """A record whose every byte follows from `value`."""
    return {"first": np.full(100, value, np.uint8), "second": np.arange(value, value + 100)}


def is_record_of(value: int, record: Any) -> bool:
    expected = record_of(value)
    return all(np.array_equal(record[name], expected[name]) for name in expected)


class Writer:
    """A store, which says where its records lie."""

    def create(self, ring_id: str) -> Any:
        segment = WriterSegment.create(LAYOUT, epoch=EPOCH, host=HostCalls(), new_ring_id=lambda: ring_id)
        self._ring = RingWriter(segment, max_object_bytes=LAYOUT.data_bytes)
        self._store = ObjectStoreWriter(self._ring)
        return self._ring.announcement

    def attach(self, reader_id: int, incarnation: int) -> bool:
        return self._ring.readers.attach(reader_id, incarnation)

    def put(self, value: int) -> None:
        handle = self._store.put(str(value), record_of(value))
        crash_point("item.before_send")
        _answer(handle)
        crash_point("item.after_send")

    def poll_deaths(self) -> int:
        return len(self._ring.readers.poll_deaths())

    def close(self) -> None:
        self._store.close()

    def sweep(self) -> list[str]:
        return sweep()


class Reader:
    """An entry, a mapping, and records in hand."""

    def __init__(self) -> None:
        self._held: list[Any] = []
        self._done: deque[Handle] = deque()

    def attach(self, announcement: Any) -> Any:
        self._entry = ReaderEntry.attach(msgspec.convert(announcement, RingAnnouncement))
        crash_point("entry.before_hello")
        return [self._entry.reader_id, self._entry.incarnation]

    def open(self, announcement: Any) -> None:
        self._reader = RingReader.open(msgspec.convert(announcement, RingAnnouncement))
        self._store = ObjectStoreReader(self._reader)

    def receive(self, value: int, place: Any) -> bool:
        handle = msgspec.convert(place, Handle)
        assert all(self._entry.take_leases([Taking(handle)], self._reader.look))
        crash_point("read.after_receive")

        def release() -> None:
            crash_point("read.in_finalizer")
            self._done.append(handle)

        record = self._store.get(handle, tensors="numpy", on_release=release)
        crash_point("read.viewing")
        self._held.append(record)
        return is_record_of(value, record)

    def take(self, key: str) -> bool:
        look = self._reader.look
        handle = look.find(key_digest(key))
        assert handle is not None
        return self._entry.take_leases([Taking(handle)], look)[0]

    def release(self) -> None:
        self._held.clear()
        while self._done:
            self._entry.give_back(self._done.popleft())


def main(party: object) -> None:
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        command: Callable[..., Any] = getattr(party, name)
        answer = command(*arguments)
        if name != "put":  # they have answered in the middle
            _answer(answer)


def _answer(value: Any) -> None:
    # One write, so that what has been sent has left this process, as a message in a socket's buffer has.
    os.write(1, msgspec.json.encode(value) + b"\n")


if __name__ == "__main__":
    main({"writer": Writer, "reader": Reader}[sys.argv[1]]())
