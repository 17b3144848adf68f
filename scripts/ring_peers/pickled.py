"""`multiprocessing.shared_memory` and pickle: places in turn, the whole record as one pickle, loaded by every reader.

Nobody guards the places: one that is written again too early is the user's fault. It shows what a few lines get.
"""

from __future__ import annotations

import itertools
import pickle  # noqa: TID251 — it is what is measured
from collections.abc import Iterator
from multiprocessing import resource_tracker, shared_memory  # noqa: TID251 — it is what is measured

import torch

from ring_peers.pool import ReaderPool
from ring_peers.transport import Link, Options, Shape

ROOM_FOR_HEADERS = 4096


class PickleWriterEnd:
    """One segment, as many places as fit."""

    name = "shared_memory + pickle"

    def __init__(self, pool: ReaderPool, shape: Shape) -> None:
        self._pool = pool
        self._readers = range(shape.num_readers)
        self._memory = shared_memory.SharedMemory(create=True, size=shape.ring_bytes)
        self._buffer = memoryview(self._memory.buf or b"")
        place_bytes = shape.item_bytes + ROOM_FOR_HEADERS
        self._places = itertools.cycle(range(0, shape.ring_bytes - place_bytes + 1, place_bytes))
        self._session = pool.new_session()
        pool.open(self._session, "pickled", {index: {"name": self._memory.name} for index in self._readers})

    def begin(self, num_puts: int) -> None:
        pass

    def put(self, key: int, item: torch.Tensor) -> None:
        packed = pickle.dumps({"pixel_values": item}, pickle.HIGHEST_PROTOCOL)
        place = next(self._places)
        self._buffer[place : place + len(packed)] = packed
        message = bytes([self._session]) + place.to_bytes(8) + len(packed).to_bytes(8)
        for index in self._readers:
            self._pool.links[index].send(message)

    def hit(self, key: int) -> None:
        raise NotImplementedError("nothing is kept under a key")

    def holds(self, key: int) -> bool:
        return False

    def close(self) -> None:
        try:
            self._pool.close_session(self._session, len(self._readers))
        finally:
            self._buffer.release()
            self._memory.close()
            self._memory.unlink()


class PickleReaderEnd:
    """Loads what lies at a place."""

    def __init__(self, options: Options) -> None:
        self._memory = shared_memory.SharedMemory(options["name"])
        # Attaching registers the segment as if it were this process's, whose tracker would unlink it at the end.
        resource_tracker.unregister(f"/{self._memory.name}", "shared_memory")
        self._buffer = memoryview(self._memory.buf or b"")

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        place, nbytes = int.from_bytes(message[1:9]), int.from_bytes(message[9:17])
        with self._buffer[place : place + nbytes] as packed:
            record = pickle.loads(packed)  # noqa: S301 — made by this measurement's writer
        yield record.pop("pixel_values")

    def close(self) -> None:
        self._buffer.release()
        self._memory.close()


def open_reader(session: int, options: Options, link: Link) -> PickleReaderEnd:
    """Open the reader's end."""
    return PickleReaderEnd(options)
