"""The faults that were reproduced in a published object store of this kind, and how this one behaves in their place.

The letter in each docstring is the fault's in that list: a wedged ring, blocked readers, mixed bytes, leaked memory.
"""

from __future__ import annotations

import os
import secrets
import signal
from typing import Any

import msgspec
import numpy as np
import pytest

from mmcached.shm import (
    ObjectStoreWriter,
    sweep,
)
from mmcached.shm.segment import segment
from mmcached.shm.store.codec import EncodedRecord
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.shm.crash_parties import Party
from tests.shm.integrity import check_objects
from tests.shm.processes import ChildError, Process, attach, digest
from tests.shm.rings import make_ring, put

KB = 1000
MIB = 1 << 20
NUM_PUTS = 200


def names_of(announcement: RingAnnouncement) -> set[str]:
    return {announcement.data_name, announcement.ctl_name}


def test_clear_and_put_leave_a_reader_its_bytes() -> None:
    """E4: the reader of an object got bytes of two objects, without an error."""
    with make_ring(100 * KB) as ring, Process() as process:
        attach(ring, process)
        handle = put(ring, 50 * KB, 5)
        assert process.ask("take", handle)
        process.ask("view", handle)  # it has begun to decode
        ring.records.clear()
        for value in range(NUM_PUTS):
            put(ring, 40 * KB, value)
        assert process.ask("digests") == [digest(5, 50 * KB)]
        assert not process.ask("take", handle), "what was cleared is not found again"
        process.ask("give_back", handle)
        process.ask("drop_views")
        process.ask("give_back", handle)
        put(ring, 99 * KB)


def test_a_killed_writer_leaves_its_readers_whole_and_nothing_after_the_next_start() -> None:
    """E6, the writer alone: an unlucky tracker unlinked what was in use."""
    with Process() as writer, Process() as reader:
        announcement = msgspec.convert(writer.ask("create", 1 << 16), RingAnnouncement)
        handle = msgspec.convert(writer.ask("put", 1000, 5), Handle)
        reader.ask("attach", announcement)
        reader.ask("open", announcement)
        reader.ask("view", handle)
        writer.kill()
        assert reader.ask("digests") == [digest(5, 1000)]
        sweep()
        assert not names_of(announcement) & set(segment.leftover_names(os.getuid()))
        reader.ask("give_back", handle)  # nobody reads it any more; it harms nobody
        with pytest.raises(ChildError, match="segment_error"):
            reader.ask("attach", announcement)
        with make_ring() as successor:
            put(successor, 1000, 6)
            assert reader.ask("digests") == [digest(5, 1000)]
            assert attach(successor, reader)[0] == 0
            reader.ask("view", put(successor, 1000, 7))
            assert reader.ask("digests") == [digest(5, 1000), digest(7, 1000)]


def test_a_killed_process_group_leaves_nothing_after_the_next_start() -> None:
    """E6, all at once, as a container is killed: the segment stayed in /dev/shm."""
    ring_id = secrets.token_hex(16)
    with Party("writer", process_group=0) as writer, Party("reader", process_group=writer.pid) as reader:
        announcement = msgspec.convert(writer.ask("create", ring_id), RingAnnouncement)
        reader_id, incarnation = reader.ask("attach", announcement)
        assert writer.ask("attach", reader_id, incarnation)
        reader.ask("open", announcement)
        assert reader.ask("receive", 1, writer.ask("put", 1))
        os.killpg(writer.pid, signal.SIGKILL)
        assert [party.exit_code() for party in (writer, reader)] == [-signal.SIGKILL] * 2
    names = names_of(announcement)
    assert names <= set(segment.leftover_names(os.getuid()))
    sweep()
    assert not names & set(segment.leftover_names(os.getuid()))


def test_an_exception_while_an_object_is_written_leaves_the_books_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """E9: an exception between allocation and index made every later put fail that had to evict."""

    def fail(encoded: EncodedRecord, buffer: Any) -> None:
        raise RuntimeError("faulty tensor")

    with make_ring(100 * KB) as ring, ObjectStoreWriter(ring) as store:
        record = {"pixels": np.zeros(8 * KB, np.uint8)}
        for round_number in range(3):
            for value in range(20):
                store.put(f"{round_number}.{value}", record)
            with monkeypatch.context() as patch:
                patch.setattr(EncodedRecord, "write_into", fail)
                for _ in range(20):
                    with pytest.raises(RuntimeError, match="faulty"):
                        store.put("broken", record)
            check_objects(store)
            assert store.find("broken") is None
            assert ring.stats().pinned_bytes == 0
        evictions = ring.stats().evictions
        with pytest.raises(InvalidRequest):
            store.put("broken", {"pixels": object()})
        assert ring.stats().evictions == evictions  # what cannot be encoded evicts nobody
        store.put("broken", record)
        check_objects(store)
