"""Records that lie in nurseries, in a ring of this process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import numpy as np
import pytest

from mmcached.shm import ReaderEntry, RingWriter, adopt_ring, sweep
from mmcached.shm.ring.nursery_table import Placed, PlacedRecord
from mmcached.shm.segment import nursery_files
from mmcached.shm.segment.layout import SLOT_WORDS
from mmcached.shm.segment.mapped import SHM_DIR, layout_of, map_object
from mmcached.shm.segment.pages import Pages
from mmcached.wire.errors import StaleHandle
from mmcached.wire.handle import Handle
from tests.shm.integrity import check_ring
from tests.shm.rings import Taking, attached, make_ring, overwritten, reading

NBYTES = 1 << 16
NUM_SLOTS = 8


@pytest.fixture
def ring() -> Iterator[RingWriter]:
    with make_ring(num_slots=16, num_nursery_slots=NUM_SLOTS, max_object_bytes=NBYTES) as made:
        made.nurseries.create(7, 4 * NBYTES, first_bytes=NBYTES)
        yield made


def publish(ring: RingWriter, index: int, value: int) -> Handle:
    """Publish a record whose bytes all have one value, at place number `index`."""
    with (SHM_DIR / ring.announcement.nursery_name(7)[1:]).open("r+b") as file:
        os.pwrite(file.fileno(), bytes([value]) * NBYTES, index * NBYTES)
    return ring.publish_placed(PlacedRecord(7, index * NBYTES, NBYTES, 0))


def take(ring: RingWriter, entry: ReaderEntry, handle: Handle) -> Taking:
    taking = Taking(handle)
    with reading(ring) as reader:
        assert all(entry.take_leases([taking], reader.look))
    return taking


def test_a_place_is_free_only_after_its_slot_was_erased(ring: RingWriter) -> None:
    """The client may fill it then: a reader that knows the generation must not find the slot again, also not if this
    process is killed between the two.
    """
    freed: list[tuple[int, int]] = []

    def note(slot: int, place: Placed) -> None:
        with overwritten(ring.announcement.data_name) as words:
            first = layout_of(ring.announcement).slots_offset // 8
            freed.append((place.offset // NBYTES, words[first + SLOT_WORDS * slot]))

    ring.placed.on_free = note
    dropped, evicted, leased = (publish(ring, index, 1) for index in range(3))
    with attached(ring) as entry:
        take(ring, entry, leased)
        ring.records.discard(dropped)
        assert ring.records.evict(evicted)
        assert not ring.records.evict(leased)
        ring.records.discard(leased)
        ring.records.free_islands()
        assert freed == [(0, 0), (1, 0)]
        entry.give_back(leased)
        ring.records.free_islands()
    assert freed == [(0, 0), (1, 0), (2, 0)]


def test_what_is_cut_off_is_not_read_and_not_published(ring: RingWriter) -> None:
    first, second = publish(ring, 0, 1), publish(ring, 1, 2)
    os.truncate(SHM_DIR / ring.announcement.nursery_name(7)[1:], NBYTES + 100)
    assert ring.records.read(first).tolist() == [1] * NBYTES
    assert ring.records.read(second, 100).tolist() == [2] * 100
    with pytest.raises(StaleHandle, match="are not in nursery 7"):
        ring.records.read_into(second, 50, np.empty(51, np.uint8))
    with pytest.raises(StaleHandle, match="cut short"):
        ring.publish_placed(PlacedRecord(7, 2 * NBYTES, NBYTES, 0))


def test_a_file_that_is_cut_short_while_it_is_mapped_is_gone_for_now(
    ring: RingWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SHM_DIR / ring.announcement.nursery_name(7)[1:]
    handle = publish(ring, 1, 5)

    def cut_and_map(fd: int, nbytes: int, **options: int) -> Pages:
        os.truncate(path, NBYTES)
        return map_object(fd, nbytes, **options)

    with reading(ring) as reader:
        with monkeypatch.context() as patch:
            patch.setattr(nursery_files, "map_object", cut_and_map)
            with pytest.raises(StaleHandle):
                reader.view(handle)
        with pytest.raises(StaleHandle):
            reader.view(handle)
        os.truncate(path, 4 * NBYTES)
        assert set(reader.view(handle).tolist()) == {0}, "what is there now, in a mapping as long as the file"


@pytest.mark.parametrize("reason", ["gone", "no descriptor", "cut short"])
def test_a_nursery_that_cannot_be_taken_over_is_in_the_log(
    ring: RingWriter, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for index in range(3):
        publish(ring, index, index)
    ring.records.discard(publish(ring, 3, 9))
    ring.outlives_writer = True
    ring.close()
    path = SHM_DIR / ring.announcement.nursery_name(7)[1:]

    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    if reason == "gone":
        path.unlink()
    elif reason == "cut short":
        os.truncate(path, NBYTES)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        if reason == "no descriptor":
            patch.setattr(nursery_files, "open_own", refuse)
        layout = layout_of(ring.announcement)
        successor = adopt_ring(ring.announcement, layout, max_object_bytes=NBYTES, num_nursery_slots=NUM_SLOTS)
    num_lost = 2 if reason == "cut short" else 3
    expected = [f"{num_lost} records of nursery 7 were not taken over: their bytes are not there"]
    if reason != "cut short":
        what = (
            f"[Errno 2] No such file or directory: '{path}'" if reason == "gone" else "[Errno 24] Too many open files"
        )
        expected.insert(0, f"nursery 7 cannot be taken over: {what}")
    assert [record.getMessage() for record in caplog.records] == expected
    with successor:
        assert len(successor.placed) == 3 - num_lost
        assert path.exists() == (reason == "cut short"), "it has no record that is found"
        check_ring(successor)
    sweep()


def test_what_a_reader_with_impossible_counts_may_read_in_a_nursery_stays_under_the_next_writer(
    ring: RingWriter,
) -> None:
    leased, other = publish(ring, 0, 1), publish(ring, 1, 2)
    with attached(ring) as liar:
        take(ring, liar, leased)
        for _ in range(3):
            liar.give_back(leased)
        ring.outlives_writer = True
        ring.close()
        layout = layout_of(ring.announcement)
        with adopt_ring(ring.announcement, layout, max_object_bytes=NBYTES, num_nursery_slots=NUM_SLOTS) as successor:
            assert successor.readers.leases.fenced_readers() == [liar.reader_id]
            assert not successor.records.evict(leased)
            assert not successor.records.evict(other), "which of them it reads is not known"
            liar.close()
            successor.readers.poll_deaths()
            assert successor.records.evict(leased)
            assert successor.records.evict(other)
            check_ring(successor)
