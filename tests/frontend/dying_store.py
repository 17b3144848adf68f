"""A record store whose process dies at a named point; as a program: one JSON command per line, one JSON answer each.

MMC_CRASH_AT=label python -m tests.frontend.dying_store
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from mmcached.frontend.store.record_store import RecordStore
from mmcached.shm import RingWriter, adopt_ring, encode
from mmcached.shm.segment.mapped import layout_of
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.stats import RingStats
from tests.frontend.integrity import check_records

DATA_BYTES = 1 << 14
NUM_SLOTS = 16
OPTIONS = {"data_bytes": DATA_BYTES, "num_slots": NUM_SLOTS, "max_readers": 4, "max_object_bytes": DATA_BYTES}


class Keeper:
    """One frontend's store, and what may be asked of it."""

    def __init__(self) -> None:
        self.store = RecordStore(first_epoch=1000)

    def create(self) -> RingAnnouncement:
        ring = RingWriter.create(**OPTIONS, has_index=True)  # type: ignore[arg-type]
        self.store.adopt(ring)
        return ring.announcement

    def adopt(self, announcement: Any) -> int:
        """Go on with a ring; return its epoch."""
        names = msgspec.convert(announcement, RingAnnouncement)
        self.store.adopt(adopt_ring(names, layout_of(names), max_object_bytes=DATA_BYTES))
        check_records(self.store)
        return self.store.epoch

    def attach(self, reader_id: int, incarnation: int) -> bool:
        return self.ring().readers.attach(reader_id, incarnation)

    def put(self, tenant: str, key: str, value: int) -> bool:
        """Put a record whose bytes all have one value; return whether it was kept."""
        record = {"x": np.full(900, value % 256, np.uint8), "y": np.full(4, value)}
        return self.store.put(tenant, key, encode(record), epoch=self.store.epoch) is None

    def replace(self, tenant: str, key: str, value: int) -> bool:
        """As `put`, in the place of the record that the key has."""
        record = {"x": np.full(900, value % 256, np.uint8), "y": np.full(4, value)}
        return self.store.put(tenant, key, encode(record), epoch=self.store.epoch, overwrites=True) is None

    def drop(self, tenant: str, key: str) -> bool:
        return self.store.drop(tenant, key)

    def flush(self) -> None:
        self.store.begin_epoch()

    def stats(self) -> RingStats:
        self.ring().readers.poll_deaths()
        check_records(self.store)
        return self.ring().stats()

    def ring(self) -> RingWriter:
        assert isinstance(self.store.ring, RingWriter)
        return self.store.ring

    def die(self) -> None:
        """Leave everything where it is, as a kill does, without one."""
        self.ring().outlives_writer = True
        self.store.close()


def main() -> None:
    keeper = Keeper()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        command: Callable[..., Any] = getattr(keeper, name)
        sys.stdout.write(msgspec.json.encode(command(*arguments)).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
