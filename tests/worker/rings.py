"""A ring for tests of its readers: writer, store, and an engine's reader, all in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, ReaderEntry, RingReader, RingWriter
from mmcached.shm.store.codec import encode
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.sockets.frames import Frame
from mmcached.worker.payloads import PayloadReader
from tests.worker.oracle import Image, Item, SoundSlice, VideoSlice


def record_of(item: Item) -> dict[str, object]:
    match item:
        case Image():
            return {"pixel_values": item.pixel_values, "grid": np.array(item.grid, np.int64)}
        case VideoSlice():
            return {"frames": item.frames, "grid": np.array(item.grid, np.int64)}
        case SoundSlice():
            return {"samples": item.samples}


def inline_frames(item: Item) -> list[Frame]:
    return [bytes(frame) for frame in encode(record_of(item)).frames()]


@dataclass
class EngineRing:
    """A ring and one engine that has taken an entry of it."""

    ring: RingWriter
    store: ObjectStoreWriter
    entry: ReaderEntry

    def put(self, key: str, record: dict[str, object]) -> tuple[Handle, LeaseId]:
        """Store a record and lease it to the engine."""
        handle = self.store.put(key, record)
        return handle, self.ring.grant(self.entry.reader_id, handle)

    @contextmanager
    def payloads(self, rank: int = 0) -> Iterator[PayloadReader]:
        """A worker's reader under the engine's entry."""
        with RingReader.open(self.ring.announcement) as reader:
            reader.join_entry(self.entry.reader_id, self.entry.incarnation, rank)
            yield PayloadReader(ObjectStoreReader(reader))


def make_ring(data_bytes: int = 1 << 20) -> RingWriter:
    return RingWriter.create(data_bytes=data_bytes, num_slots=64, max_readers=4, max_object_bytes=data_bytes // 2)


@contextmanager
def engine_ring(data_bytes: int = 1 << 20) -> Iterator[EngineRing]:
    with ObjectStoreWriter(make_ring(data_bytes)) as store, ReaderEntry.attach(store.ring.announcement) as entry:
        if not store.ring.attach(entry.reader_id, entry.incarnation):
            raise RuntimeError("the writer did not accept the reader")
        yield EngineRing(store.ring, store, entry)


def is_inside(ring: RingWriter, tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory is a mapping of the ring's data object in this process."""
    name = ring.announcement.data_name
    with open("/proc/self/maps") as maps:
        for line in maps:
            if name in line:
                start, _, end = line.split()[0].partition("-")
                if int(start, 16) <= tensor.data_ptr() < int(end, 16):
                    return True
    return False
