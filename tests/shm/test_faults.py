"""The faults that were reproduced in a published object store of this kind, and how this one behaves in their place.

The letter in each docstring is the fault's in that list: a wedged ring, blocked readers, mixed bytes, leaked memory.
"""

from __future__ import annotations

import errno
import os
import secrets
import signal
from typing import Any

import msgspec
import numpy as np
import pytest

from mmcached.shm import (
    HostCalls,
    ObjectStoreWriter,
    ReaderStopped,
    ReaderVoided,
    RingWriter,
    sweep,
)
from mmcached.shm.segment import mapped, segment
from mmcached.shm.segment.layout import chunk_bytes
from mmcached.shm.store.codec import EncodedRecord
from mmcached.wire.errors import InvalidRequest, SegmentError, StaleHandle
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.shm.crash_parties import Party
from tests.shm.integrity import check_objects, check_ring
from tests.shm.processes import ChildError, Process, attach, digest
from tests.shm.rings import attached, make_ring, put, reading, take

KB = 1000
MIB = 1 << 20
NUM_PUTS = 200


def put_all(ring: RingWriter, nbytes: int = 9 * KB) -> None:
    """Put many times the ring's size; a refusal raises."""
    for value in range(NUM_PUTS):
        put(ring, nbytes, value % 256)


def names_of(announcement: RingAnnouncement) -> set[str]:
    return {announcement.data_name, announcement.ctl_name}


def test_a_lease_of_an_aborted_request_comes_back_unread() -> None:
    """E1: one extra reference that no worker read wedged the ring for ever."""
    with make_ring(100 * KB) as ring, attached(ring) as entry:
        handle = put(ring, 9 * KB)
        assert take(ring, entry, handle)
        entry.give_back(handle)  # a hit for a request that is then rejected: sent, never looked at
        put_all(ring)
        assert not ring.records.is_current(handle)
        assert ring.stats().refusals == ring.stats().leases == 0
        check_ring(ring)


def test_one_unread_object_costs_its_own_bytes_only() -> None:
    """E2: one unread object at the head of the ring stopped all puts behind it."""
    with make_ring(100 * KB) as ring, attached(ring) as entry, reading(ring) as reader:
        unread = put(ring, 9 * KB, 77)
        assert take(ring, entry, unread)
        for value in range(NUM_PUTS):
            handle = put(ring, 9 * KB, value)
            assert take(ring, entry, handle)
            assert reader.view(handle)[0] == value
            entry.give_back(handle)
        assert ring.stats().refusals == 0
        assert reader.view(unread).tolist() == [77] * (9 * KB)


def test_reading_twice_gives_nothing_back_twice() -> None:
    """E3: a second read of one handle, after a preemption, counted again; the bytes went while another read them."""
    with make_ring(100 * KB) as ring, attached(ring) as one, attached(ring) as two, reading(ring) as reader:
        handle = put(ring, 9 * KB, 5)
        for entry in (one, two):
            assert take(ring, entry, handle)
            for _ in range(2):
                assert reader.view(handle)[0] == 5
        one.give_back(handle)
        assert take(ring, one, handle)  # the new request
        two.give_back(handle)
        put_all(ring)
        assert reader.view(handle).tolist() == [5] * (9 * KB)
        one.give_back(handle)
        put_all(ring)
        with pytest.raises(StaleHandle):
            reader.view(handle)


def test_a_reader_that_does_give_back_twice_takes_no_bytes_from_another() -> None:
    """E3, by a reader with that very bug: it is fenced, and the other one's lease stands."""
    with make_ring(100 * KB) as ring, attached(ring) as wrong, attached(ring) as right, reading(ring) as reader:
        handle = put(ring, 9 * KB, 5)
        for entry in (wrong, right):
            assert take(ring, entry, handle)
        assert ring.readers.poll_deaths() == []
        wrong.give_back(handle)
        wrong.give_back(handle)
        (event,) = ring.readers.poll_deaths()
        assert isinstance(event, ReaderStopped)
        assert not take(ring, wrong, put(ring, 1))
        put_all(ring)
        assert reader.view(handle).tolist() == [5] * (9 * KB)


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


def test_a_reader_that_dies_unread_gives_its_bytes_back_by_dying() -> None:
    """E5: when one of two readers died without reading, puts failed for ever."""
    with make_ring(100 * KB) as ring, Process() as dead, attached(ring) as entry, reading(ring) as reader:
        dead_id, _ = attach(ring, dead)
        for value in range(10):
            handle = put(ring, 9 * KB, value)
            for one in (dead_id, entry.reader_id):
                assert take(ring, entry, handle) if one == entry.reader_id else dead.ask("take", handle)
            assert reader.view(handle)[0] == value
            entry.give_back(handle)
        assert ring.stats().leases == 10
        dead.kill()
        assert [type(event) for event in ring.readers.poll_deaths()] == [ReaderVoided]
        put_all(ring)
        assert ring.stats().refusals == ring.stats().leases == 0


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


def test_a_ring_larger_than_its_memory_is_an_error_at_creation() -> None:
    """E7: 64 MiB on a tmpfs of 16 MiB were created without a word; a later put died of SIGBUS."""
    room = 16 * MIB

    def fallocate(fd: int, offset: int, size: int) -> None:
        """The tmpfs: what has been allocated stays taken."""
        if size > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.posix_fallocate(fd, offset, size)

    small = HostCalls(fallocate=fallocate, shm_free_bytes=lambda: room)
    lying = HostCalls(
        fallocate=fallocate, shm_free_bytes=lambda: 1 << 40
    )  # another process takes the room after our look
    for host in (small, lying):
        with pytest.raises(SegmentError, match="/dev/shm has") as caught:
            RingWriter.create(data_bytes=64 * MIB, max_object_bytes=MIB, host=host)
        needed = caught.value.details["needed_bytes"]
        assert isinstance(needed, int)
        assert needed >= 64 * MIB
    with RingWriter.create(data_bytes=8 * MIB, max_object_bytes=4 * MIB, host=small) as ring:
        status = (mapped.SHM_DIR / ring.announcement.data_name[1:]).stat()
        needed = mapped.layout_of(ring.announcement).data_object_bytes
        assert status.st_blocks * 512 >= needed  # no page is left to be refused later
        for value in range(4):
            put(ring, 4 * MIB, value)


def test_a_small_object_into_a_full_ring_evicts_one_chunk() -> None:
    """E8: twice the largest size was evicted for each admission: 80 of 197 objects for 5 kB."""
    evicted: list[Handle] = []
    with make_ring(
        197 * chunk_bytes(5 * KB), num_slots=1000, max_object_bytes=200 * KB, on_evict=evicted.append
    ) as ring:
        handles = [put(ring, 5 * KB) for _ in range(197)]
        assert evicted == []
        put(ring, 5 * KB)
        assert len(evicted) == 1
        put(ring, 3 * chunk_bytes(5 * KB) - 64)
        assert len(evicted) == 4
        assert sum(map(ring.records.is_current, handles)) == 193


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
