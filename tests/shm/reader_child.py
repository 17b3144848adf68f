"""A reader or writer process for tests: reads one JSON command per line, answers each with one JSON line.

It ends at the end of its input. Real death is the parent's `kill -9`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mmcached.shm import ReaderEntry, RingReader, RingWriter
from mmcached.wire.errors import MmcachedError
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.shm.rings import Taking


class Child:
    """What one process may hold: an entry, a mapping, views, or a whole ring."""

    reader_id: ReaderEntry
    reader: RingReader
    writer: RingWriter

    def __init__(self) -> None:
        self.views: list[npt.NDArray[np.uint8]] = []

    def create(self, data_bytes: int) -> Any:
        self.writer = RingWriter.create(data_bytes=data_bytes, max_object_bytes=data_bytes)
        return msgspec.to_builtins(self.writer.announcement)

    def put(self, nbytes: int, value: int) -> Any:
        claim = self.writer.claim(nbytes)
        claim.buffer[:] = value
        return msgspec.to_builtins(self.writer.commit(claim))

    def attach(self, announcement: Any) -> Any:
        self.entry = ReaderEntry.attach(msgspec.convert(announcement, RingAnnouncement))
        return [self.entry.reader_id, self.entry.incarnation]

    def open(self, announcement: Any) -> None:
        self.reader = RingReader.open(msgspec.convert(announcement, RingAnnouncement))

    def take(self, handle: Any) -> bool:
        return all(self.entry.take_leases([Taking(msgspec.convert(handle, Handle))], self.reader.look))

    def view(self, handle: Any) -> None:
        self.views.append(self.reader.view(msgspec.convert(handle, Handle)))

    def close_reader(self) -> None:
        self.reader.close()

    def digests(self) -> list[str]:
        return [hashlib.sha256(view.tobytes()).hexdigest() for view in self.views]

    def drop_views(self) -> None:
        self.views.clear()

    def give_back(self, handle: Any) -> None:
        self.entry.give_back(msgspec.convert(handle, Handle))


def main() -> None:
    child = Child()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = ["ok", getattr(child, name)(*arguments)]
        except MmcachedError as error:
            answer = ["error", error.code]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
