"""A ring for tests of its readers: writer, store, and a worker's client of it, all in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from mmcached.client import Client, Hit
from mmcached.client.store.hits import reading_of
from mmcached.client.store.session import StoreSession
from mmcached.client.store.tokens import checked_token
from mmcached.shm import ObjectStoreWriter, RingWriter
from mmcached.shm.store.codec import encode
from mmcached.wire.messages.parts import StoredItem
from mmcached.wire.sockets.frames import Frame
from mmcached.worker.payloads import StoreContact
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


class RingClient:
    """In the place of a worker's client: it reads a ring whose writer attaches it by a plain call."""

    def __init__(self, ring: RingWriter) -> None:
        self._session = StoreSession(ring.announcement)
        reader = self._session.take_announcement()
        assert reader is not None
        assert ring.readers.attach(reader.reader_id, reader.incarnation)
        self._session.is_attached = True

    def open(self, token: str, *, view: bool, **_: Any) -> Hit | None:
        found = self._session.open_token(checked_token(token), reading_of("torch", view))
        return None if found is None else found[0]

    def close(self) -> None:
        self._session.close()


@dataclass
class ItemStore:
    """A ring with items, and a worker's contact with it."""

    ring: RingWriter
    store: ObjectStoreWriter
    contact: StoreContact

    def put(self, key: str, record: dict[str, object]) -> StoredItem:
        return StoredItem(self.store.put(key, record).token)

    @property
    def num_leases(self) -> int:
        return self.ring.stats().leases


def make_ring(data_bytes: int = 1 << 20) -> RingWriter:
    return RingWriter.create(data_bytes=data_bytes, num_slots=64, max_readers=4, max_object_bytes=data_bytes // 2)


@contextmanager
def item_store(data_bytes: int = 1 << 20) -> Iterator[ItemStore]:
    with ObjectStoreWriter(make_ring(data_bytes)) as store:
        client = cast("Client", RingClient(store.ring))
        with StoreContact(lambda: client) as contact:
            yield ItemStore(store.ring, store, contact)
            client.close()


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
