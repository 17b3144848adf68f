"""The store of one frontend, with one client that lays its records into nurseries; it dies at a named point.

As a program: one JSON command per line, one JSON answer each.

python -m tests.frontend.dying_nurseries RUN_DIR
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import structlog

from mmcached.cache.store_keys import about_record, store_key
from mmcached.client.store import nursery
from mmcached.client.store.nursery import ClientNursery
from mmcached.frontend.store.store_service import StoreService
from mmcached.shm import RingWriter, crash_points, encode
from mmcached.shm.store.record_note import pack_note
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages.client import NurseryOpened, Stored, ToClient
from mmcached.wire.messages.frontend import DropRecord, GetRecords, OpenNursery, PutRecord
from mmcached.wire.process.turns import Guard
from mmcached.wire.stats import RingStats
from tests.client.store.at_once import AtOnce
from tests.frontend.integrity import check_store

CONFIG = ServiceConfig(mm_processor_cache_gb=0, store_gb=1 / 64, store_num_slots=64, keep_cache=True)
NBYTES = 500_000


class Peers:
    """The channel of the service: what it says to the client, and which connections are open."""

    def __init__(self) -> None:
        self.number = 0
        self.said: list[ToClient] = []

    @property
    def peer(self) -> bytes:
        return b"%d" % self.number

    def __contains__(self, peer: bytes) -> bool:
        return peer == self.peer

    def try_send(self, peer: bytes, message: ToClient, payload: Sequence[object] = ()) -> bool:
        self.said.append(message)
        return True


class Store:
    """One frontend's store and its client, and what may be asked of them."""

    def __init__(self, home: Path) -> None:
        self._peers = Peers()
        self.service = StoreService(CONFIG, channel=self._peers, clock=time.monotonic, home=home)  # type: ignore[arg-type]
        self._nursery: ClientNursery | None = None
        self._number = 0

    @property
    def ring(self) -> RingWriter:
        ring = self.service.records.ring
        assert isinstance(ring, RingWriter)
        return ring

    def announcement(self) -> RingAnnouncement:
        return self.ring.announcement

    def arm(self, crash_at: str) -> None:
        """Die at a point from now on."""
        crash_points._TARGET, crash_points._passes = crash_points.parse(crash_at), 0  # type: ignore[misc]

    def attach(self, reader_id: int, incarnation: int) -> bool:
        return self.ring.readers.attach(reader_id, incarnation)

    def put(self, key: str, value: int, overwrites: bool = False) -> bool:
        """Put a record whose bytes all have one value; return whether it was laid into the nursery."""
        record, note = encode({"x": np.full(NBYTES, value, np.uint8)}), pack_note(store_key("", key), _about(key))
        if self._nursery is None:
            opened = self._ask(OpenNursery("c", 0, record.nbytes + len(note)))
            assert isinstance(opened, NurseryOpened)
            self._nursery = ClientNursery(opened.grants, has_checksums=False)
            self._nursery.map(self.announcement())
        self._number += 1
        place = self._nursery.lay(self._number, record, note)
        if place is None:
            more = self._ask(OpenNursery("c", 0, record.nbytes + len(note), self._nursery.nursery))
            assert isinstance(more, NurseryOpened)
            self._nursery.granted(more.grants)
            place = self._nursery.lay(self._number, record, note)
        epoch = self.service.records.epoch
        ask = PutRecord("c", self._number, key, epoch, place=place, overwrites=overwrites)
        stored = self._ask(ask, [] if place else [bytes(frame) for frame in record.frames()])
        assert isinstance(stored, Stored)
        assert stored.is_stored, stored.reason
        self._nursery.answered(self._number, stored.grants)
        return place is not None

    def get(self, key: str) -> None:
        """Ask for a record, so that it is copied into the ring when its turn comes."""
        self._ask(GetRecords("c", 0, [key]))

    def drop(self, key: str) -> None:
        self._ask(DropRecord(0, key))

    def leave(self) -> None:
        """Close the client's connection; its nursery is drained. Its next put goes over another one."""
        self._peers.number += 1
        self._nursery = None
        self.service.check(time.monotonic())
        check_store(self.service)

    def flush(self) -> None:
        self.service.flush(is_new_epoch=True)

    def stats(self) -> RingStats:
        self.ring.readers.poll_deaths()
        self.service.check(time.monotonic())
        check_store(self.service)
        return self.ring.stats()

    def files(self) -> list[tuple[int, int]]:
        """Return the nurseries in which something lies, with the bytes of it."""
        return [
            (one.nursery, sum(place.size for place in one.records.values()))
            for one in self.service.nurseries.books
            if one.peer is None
        ]

    def close(self) -> None:
        self.ring.outlives_writer = False
        self.service.close()

    def _ask(self, message: Any, payload: Sequence[bytes] = ()) -> ToClient:
        self._peers.said.clear()
        self.service.handle(self._peers.peer, message, payload)
        (answer,) = self._peers.said
        self.service.go_on(Guard())
        return answer


def _about(key: str) -> bytes:
    return about_record("", key, 1)


def main(home: Path) -> None:
    mock.patch.object(nursery, "Populator", AtOnce).start()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # its output is for answers
    store = Store(home)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        command: Callable[..., Any] = getattr(store, name)
        sys.stdout.write(msgspec.json.encode(command(*arguments)).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
