from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from mmcached.shm import ReaderVoided, RingReader
from mmcached.wire.errors import InvalidRequest, LocalProtocolError, PeerGone, SegmentError, StaleHandle
from tests.shm.rings import attached, make_ring, put, reading, take


@pytest.fixture
def no_gc() -> Iterator[None]:
    """What must be released at once must not wait for a garbage collection."""
    gc.disable()
    yield
    gc.enable()


def test_views_are_read_only() -> None:
    with make_ring() as ring, reading(ring) as reader:
        view = reader.view(put(ring, 100, 3))
        assert view.dtype == np.uint8
        assert view.shape == (100,)
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            view.flags.writeable = True
        del view


@pytest.mark.parametrize(
    "change",
    [
        {"ring_id": "f" * 32},
        {"epoch": 1},
        {"generation": 2},
        {"slot": 1},
        {"nbytes": 99},
        {"nbytes": 0},
        {"nbytes": 1 << 20},
        {"offset": 64},
        {"offset": 65},
        {"offset": 128},
        {"offset": 1 << 16},
        {"offset": 1 << 40},
        {"offset": -64},
    ],
    ids=str,
)
def test_a_handle_that_is_not_of_this_chunk_is_stale(change: dict[str, Any]) -> None:
    with make_ring() as ring, reading(ring) as reader:
        handle = put(ring, 100)
        with pytest.raises(StaleHandle):
            reader.view(msgspec.structs.replace(handle, **change))


def test_each_view_is_a_holder_of_its_own(no_gc: None) -> None:
    with make_ring() as ring, reading(ring) as reader:
        handle = put(ring, 100)
        gone: list[str] = []
        first, second = reader.view(handle), reader.view(handle)
        weakref.finalize(first, gone.append, "first")
        part = first[10:50]
        derived = part[4:20].view(np.uint32).reshape(2, 2)
        del first, part
        assert gone == []
        del derived
        assert gone == ["first"]
        del second


def test_views_outlive_close_and_nothing_outlives_the_views(no_gc: None) -> None:
    with make_ring() as ring:
        reader = RingReader.open(ring.announcement)
        mapping = weakref.ref(reader.pages)
        view = reader.view(put(ring, 100, 8))
        reader.close()
        reader.close()
        assert view.tolist() == [8] * 100
        with pytest.raises(LocalProtocolError):
            reader.view(put(ring, 1))
        assert mapping() is not None
        del view
        assert mapping() is None


def test_views_outlive_the_ring() -> None:
    with make_ring() as ring, reading(ring) as reader:
        view = reader.view(put(ring, 100, 8))
        ring.close()
        assert view.tolist() == [8] * 100
        del view


def test_joining_wants_the_incarnation_of_the_entry() -> None:
    with make_ring() as ring, attached(ring) as entry, reading(ring) as reader:
        with pytest.raises(LocalProtocolError):
            reader.is_engine_alive()
        with pytest.raises(PeerGone):
            reader.join_entry(entry.reader_id, entry.incarnation + 1, 0)
        for wrong in [(4, 0), (-1, 0), (0, 16), (0, -1)]:
            with pytest.raises(InvalidRequest):
                reader.join_entry(wrong[0], entry.incarnation, wrong[1])
        assert not entry.is_worker_alive(3)
        reader.join_entry(entry.reader_id, entry.incarnation, 3)
        assert entry.is_worker_alive(3)
        assert not entry.is_worker_alive(2)
        assert reader.is_engine_alive()
        with pytest.raises(LocalProtocolError):
            reader.join_entry(entry.reader_id, entry.incarnation, 3)


def test_a_rank_is_joined_once_at_a_time() -> None:
    with make_ring() as ring, attached(ring) as entry:
        with reading(ring) as first, reading(ring) as second, reading(ring) as third:
            first.join_entry(entry.reader_id, entry.incarnation, 0)
            second.join_entry(entry.reader_id, entry.incarnation, 1)
            with pytest.raises(SegmentError, match="rank 0 still lives"):
                third.join_entry(entry.reader_id, entry.incarnation, 0)
        with reading(ring) as successor:
            successor.join_entry(entry.reader_id, entry.incarnation, 0)


def test_the_readers_share_is_kept_until_the_last_view_is_gone(no_gc: None) -> None:
    """A free reader byte means that nobody reads: it must not get free while a view of a closed reader lives."""
    with make_ring() as ring, attached(ring) as entry:
        handle = put(ring, 100, 8)
        assert take(ring, entry, handle)
        reader = RingReader.open(ring.announcement)
        reader.join_entry(entry.reader_id, entry.incarnation, 0)
        view = reader.view(handle)
        reader.close()
        entry.close()
        (stopped,) = ring.poll_deaths()
        assert not isinstance(stopped, ReaderVoided)
        assert ring.poll_deaths() == []
        assert ring.stats().leases == 1
        del view
        assert ring.poll_deaths() == [ReaderVoided(entry.reader_id, entry.incarnation)]
        assert ring.stats().leases == 0


def test_a_closed_reader_joins_nothing() -> None:
    with make_ring() as ring, attached(ring) as entry:
        reader = RingReader.open(ring.announcement)
        reader.close()
        with pytest.raises(LocalProtocolError):
            reader.join_entry(entry.reader_id, entry.incarnation, 0)


def test_a_reader_that_populates_reads_the_same_and_leaves_no_thread() -> None:
    with make_ring(1 << 22) as ring:
        handle = put(ring, 1 << 20, 7)
        with RingReader.open(ring.announcement, populate=True) as reader:
            assert set(reader.view(handle).tolist()) == {7}
            kept = reader.view(handle)
        assert kept[-1] == 7, "the mapping lives as long as the view"
        del kept
    assert not [thread for thread in threading.enumerate() if thread.name == "populate"]
