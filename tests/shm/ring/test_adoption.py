"""A ring whose writer is gone without a word, and its successor; readers of this process go on meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mmcached.shm import ObjectStoreWriter, RingWriter, adopt_ring, encode, sweep
from mmcached.shm.ring.current_records import CurrentRecords
from mmcached.shm.ring.slot_table import expiry_of
from mmcached.shm.segment.layout import SLOT_WORDS
from mmcached.shm.segment.mapped import layout_of, open_control
from mmcached.wire.errors import LayoutMismatch, SegmentError
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.clock import boot_clock
from tests.shm.integrity import check_objects
from tests.shm.rings import make_ring, overwritten
from tests.shm.seekers import Seeker

NBYTES = 1 << 14


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
    sweep()


def new_store(undo: ExitStack, **options: Any) -> ObjectStoreWriter:
    ring = make_ring(NBYTES, num_slots=16, has_index=True, **options)
    return undo.enter_context(ObjectStoreWriter(ring))


def seeker_of(undo: ExitStack, ring: RingWriter) -> Seeker:
    seeker = Seeker(ring.announcement)
    undo.callback(seeker.close)
    assert ring.readers.attach(seeker.entry.reader_id, seeker.entry.incarnation)
    return seeker


def put(store: ObjectStoreWriter, key: str, value: int, nbytes: int = 900) -> Handle:
    return store.put(key, {"x": np.full(nbytes, value, np.uint8)})


def die(store: ObjectStoreWriter) -> RingAnnouncement:
    """Let go of the writer's lock as a kill does: nothing is said, nothing is removed."""
    store.ring.outlives_writer = True
    store.close()
    return store.ring.announcement


def adopt(undo: ExitStack, announcement: RingAnnouncement) -> ObjectStoreWriter:
    ring = adopt_ring(announcement, layout_of(announcement), max_object_bytes=NBYTES)
    store = undo.enter_context(ObjectStoreWriter(ring))
    check_objects(store)
    return store


def test_all_that_was_committed_is_there_again_and_readers_go_on_all_the_time(undo: ExitStack) -> None:
    store = new_store(undo)
    seeker = seeker_of(undo, store.ring)
    for value in range(30):  # more than fit
        put(store, str(value), value)
    kept = {key: handle for value in range(30) if (handle := store.find(key := str(value)))}
    assert 5 < len(kept) < 30
    held = seeker.take("29")
    assert held is not None
    announcement = die(store)
    assert {key: seeker.look(key) for key in kept} == {key: int(key) for key in kept}
    successor = adopt(undo, announcement)
    assert {key: successor.find(key) for key in kept} == kept
    assert {key: seeker.look(key) for key in kept} == {key: int(key) for key in kept}
    assert successor.ring.readers.attach(seeker.entry.reader_id, seeker.entry.incarnation), "its hello is repeated"
    for value in range(30, 90):  # generations go on, and what is leased stays
        assert put(successor, str(value), value).generation > max(handle.generation for handle in kept.values())
        check_objects(successor)
    assert seeker.value(held) == 29
    seeker.entry.give_back(held)
    assert successor.stats().leases == 0
    assert seeker.look("89") == 89
    assert seeker.look("0") is None


def test_a_chunk_that_was_forgotten_under_lease_stays_an_island(undo: ExitStack) -> None:
    store = new_store(undo)
    seeker = seeker_of(undo, store.ring)
    put(store, "gone", 1)
    put(store, "dropped", 2)
    held = seeker.take("gone")
    assert held is not None
    store.discard("gone")
    store.discard("dropped")
    successor = adopt(undo, die(store))
    assert len(successor) == 0
    assert successor.stats().used_bytes == successor.stats().pinned_bytes > 0
    for value in range(60):
        put(successor, str(value), value)
    assert seeker.value(held) == 1
    seeker.entry.give_back(held)
    for value in range(60, 120):
        put(successor, str(value), value)
    assert successor.stats().pinned_bytes == 0


def test_what_was_flushed_stays_flushed_in_the_middle_of_it(undo: ExitStack) -> None:
    store = new_store(undo)
    seeker = seeker_of(undo, store.ring)
    for value in range(8):
        put(store, str(value), value)
    held = seeker.take("3")
    assert held is not None
    store.ring.board.raise_floor()  # and no more
    put(store, "after", 99)
    successor = adopt(undo, die(store))
    assert list(successor.adopted) == ["after"]
    assert [seeker.look(str(value)) for value in range(8)] == [None] * 8
    assert (seeker.look("after"), seeker.value(held)) == (99, 3)


def test_the_readers_that_died_meanwhile_hold_nothing(undo: ExitStack) -> None:
    store = new_store(undo)
    seeker, other = seeker_of(undo, store.ring), seeker_of(undo, store.ring)
    put(store, "a", 1)
    assert seeker.take("a")
    assert other.take("a")
    announcement = die(store)
    seeker.close()  # its lock goes, its counts stay
    successor = adopt(undo, announcement)
    assert successor.stats().leases == 1
    other.close()
    successor.ring.readers.poll_deaths()
    assert successor.stats().leases == 0
    third = seeker_of(undo, successor.ring)
    assert third.entry.reader_id == seeker.entry.reader_id
    assert third.look("a") == 1


# ---- the index


@pytest.mark.parametrize("damage", ["twice", "missing", "gone", "cut off", "full"])
def test_the_index_shows_what_is_there_whatever_it_showed(undo: ExitStack, damage: str) -> None:
    store = new_store(undo)
    seeker = seeker_of(undo, store.ring)
    for value in range(8):
        put(store, str(value), value)
    announcement = die(store)
    layout = layout_of(announcement)
    first = layout.index_offset // 8
    with overwritten(announcement.data_name) as words:
        index = words[first : first + layout.index_words]
        taken = [place for place, word in enumerate(index) if word]
        match damage:
            case "twice":
                place = next(place for place in taken if not index[(place + 1) % len(index)])
                index[(place + 1) % len(index)] = index[place]
            case "missing":
                index[next(place for place in taken if not index[(place + 1) % len(index)])] = 0
            case "gone":
                words[layout.slots_offset // 8 + 4 * SLOT_WORDS] = 0
            case "cut off":
                place = next(place for place in range(len(index)) if not index[place] and not index[place - 1])
                index[place] = index[taken[0]] + (1 << 40)
            case "full":
                index[:] = memoryview(bytes([1]) * index.nbytes).cast("Q")
        index.release()
    successor = adopt(undo, announcement)
    missing = 1 if damage == "gone" else 0
    assert len(successor) == 8 - missing
    assert [seeker.look(key) for key in successor.adopted] == [int(key) for key in successor.adopted]
    for value in range(8, 40):
        put(successor, str(value), value)
        check_objects(successor)


# ---- what is not adopted


def test_of_two_writers_there_is_one(undo: ExitStack) -> None:
    store = new_store(undo)
    put(store, "a", 1)
    with pytest.raises(SegmentError, match="writer that lives"):
        adopt(undo, store.ring.announcement)
    assert seeker_of(undo, store.ring).look("a") == 1


def test_another_layout_than_wanted_is_left_alone(undo: ExitStack) -> None:
    announcement = die(new_store(undo))
    wanted = layout_of(announcement)
    for other in (
        replace(wanted, num_slots=32),
        replace(wanted, data_bytes=2 * NBYTES),
        replace(wanted, index_words=0),
    ):
        with pytest.raises(LayoutMismatch):
            adopt_ring(announcement, other, max_object_bytes=NBYTES)
    assert len(adopt(undo, announcement)) == 0


RECORD_WORDS = {
    "offset": (1, 8),
    "outside": (1, NBYTES),
    "far outside": (1, 1 << 63),
    "size": (2, NBYTES),
    "note": (3, NBYTES),
    "huge note": (3, (1 << 64) - 64),
    "generation": (0, 99),
}


@pytest.mark.parametrize("damage", [*RECORD_WORDS, "overlap"])
def test_records_that_cannot_be_end_the_ring_and_not_its_readers(undo: ExitStack, damage: str) -> None:
    store = new_store(undo)
    seeker = seeker_of(undo, store.ring)
    for key in ("a", "b"):
        put(store, key, 7)
    held = seeker.take("a")
    assert held is not None
    announcement = die(store)
    with overwritten(announcement.data_name) as words:
        first = layout_of(announcement).slots_offset // 8
        second = first + SLOT_WORDS
        match damage:
            case "overlap":
                words[second + 1] = words[first + 1]
            case _:
                word, value = RECORD_WORDS[damage]
                words[second + word] = value << 1 | 1 if word == 0 else value
    with pytest.raises(SegmentError):
        adopt(undo, announcement)
    with pytest.raises(SegmentError, match="is gone"):
        open_control(announcement)
    assert seeker.value(held) == 7
    assert seeker.look("a") is None


def test_what_expires_does_so_without_a_writer_and_under_the_next_one(
    undo: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = boot_clock(monkeypatch)
    store = new_store(undo)
    seeker = seeker_of(undo, store.ring)
    for value, ttl_s in enumerate([10.0, 20.0, 0.0]):
        record = encode({"x": np.full(900, value, np.uint8)})
        store.put_encoded(str(value), record, expires_at=expiry_of(ttl_s))
    announcement = die(store)
    clock.now += 10
    assert [seeker.look(str(value)) for value in range(3)] == [None, 1, 2]
    successor = adopt(undo, announcement)
    assert successor.discard_expired(10) == ["0"]
    clock.now += 10
    assert [seeker.look(str(value)) for value in range(3)] == [None, None, 2]
    assert successor.discard_expired(10) == ["1"]
    assert (len(successor), successor.stats().chunks) == (1, 1)


def test_of_two_records_of_one_key_the_later_is_kept(undo: ExitStack) -> None:
    store = new_store(undo)
    seeker = seeker_of(undo, store.ring)
    put(store, "a", 7)
    held = seeker.take("a")
    assert held is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CurrentRecords, "discard", lambda records, handle: None)  # it dies before that
        new = store.replace("a", encode({"x": np.full(900, 8, np.uint8)}))
    successor = adopt(undo, die(store))
    assert successor.find("a") == new
    assert (seeker.look("a"), seeker.value(held)) == (8, 7)
    assert successor.stats().chunks == 1
    for value in range(60):
        put(successor, str(value), value)
    assert seeker.value(held) == 7


@pytest.mark.parametrize("is_noticed", [True, False], ids=["fenced before", "fenced by the successor"])
def test_of_a_reader_that_counts_what_cannot_be_all_records_stay_until_it_ends(
    undo: ExitStack, is_noticed: bool
) -> None:
    store = new_store(undo)
    liar, honest = seeker_of(undo, store.ring), seeker_of(undo, store.ring)
    for value in range(4):
        put(store, str(value), value)
    held = liar.take("0")
    assert held is not None
    for _ in range(3):
        liar.entry.give_back(held)
    if is_noticed:
        assert len(store.ring.readers.poll_deaths()) == 1
    store.discard("1")
    announcement = die(store)
    for _ in range(2):  # and once more, by a successor that has not fenced it
        ring = adopt_ring(announcement, layout_of(announcement), max_object_bytes=NBYTES)
        store = undo.enter_context(ObjectStoreWriter(ring))
        assert ring.readers.leases.fenced_readers() == [liar.entry.reader_id]
        assert ring.stats().pinned_bytes == ring.stats().used_bytes > 0
        assert [honest.look(str(value)) for value in (0, 2, 3)] == [0, 2, 3]
        assert liar.take("2") is None, "it takes no more leases"
        assert not ring.readers.attach(liar.entry.reader_id, liar.entry.incarnation), "its hello is refused"
        announcement = die(store)
    ring = adopt_ring(announcement, layout_of(announcement), max_object_bytes=NBYTES)
    store = undo.enter_context(ObjectStoreWriter(ring))
    for value in range(4, 99):  # they take turns in the room that was free
        put(store, str(value), value)
    assert [honest.look(str(value)) for value in (0, 2, 3, 98)] == [0, 2, 3, 98]
    assert liar.value(held) == 0
    liar.close()
    ring.readers.poll_deaths()
    check_objects(store)
    for value in range(100, 130):
        put(store, str(value), value)
    assert [honest.look(str(value)) for value in (0, 2, 3, 129)] == [None, None, None, 129]
    assert (ring.readers.leases.fenced_readers(), ring.stats().pinned_bytes) == ([], 0)


def test_a_reader_that_takes_the_entry_of_a_fenced_one_is_believed(undo: ExitStack) -> None:
    store = new_store(undo)
    liar = seeker_of(undo, store.ring)
    liar.entry.give_back(put(store, "a", 1))
    assert len(store.ring.readers.poll_deaths()) == 1
    announcement = die(store)
    liar.close()
    newcomer = Seeker(announcement)
    undo.callback(newcomer.close)
    assert newcomer.entry.reader_id == liar.entry.reader_id
    successor = adopt(undo, announcement)
    assert successor.ring.readers.leases.fenced_readers() == []
    assert successor.ring.readers.attach(newcomer.entry.reader_id, newcomer.entry.incarnation)
    assert newcomer.look("a") == 1


def test_a_claim_that_was_open_when_all_was_cleared_is_kept(undo: ExitStack) -> None:
    ring = undo.enter_context(make_ring(NBYTES, num_slots=16))
    claim = ring.claim(64)
    ring.records.clear()
    kept = ring.commit(claim)
    ring.outlives_writer = True
    ring.close()
    successor = undo.enter_context(adopt_ring(ring.announcement, layout_of(ring.announcement), max_object_bytes=NBYTES))
    assert [handle for handle, _, _ in successor.records] == [kept]
