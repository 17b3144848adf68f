from __future__ import annotations

import msgspec
import pytest

from mmcached.shm import ReaderEntry, ReaderStopped
from mmcached.shm.segment import words
from mmcached.shm.segment.layout import MAX_COUNT, Layout
from mmcached.wire.errors import LocalProtocolError, SegmentError
from tests.shm.rings import attached, make_ring, overwritten, put, take


def test_entries_are_taken_in_order_and_given_free() -> None:
    with make_ring(max_readers=2) as ring, ReaderEntry.attach(ring.announcement) as first:
        with ReaderEntry.attach(ring.announcement) as second:
            assert [first.reader_id, second.reader_id] == [0, 1]
            with pytest.raises(SegmentError, match="all 2 entries"):
                ReaderEntry.attach(ring.announcement)
        with ReaderEntry.attach(ring.announcement) as again:
            assert again.reader_id == 1
            assert again.incarnation != second.incarnation


def test_a_hello_counts_once_and_only_if_it_is_true() -> None:
    with make_ring() as ring, ReaderEntry.attach(ring.announcement) as entry:
        assert not ring.readers.attach(entry.reader_id, entry.incarnation + 1)
        assert not ring.readers.attach(entry.reader_id + 1, entry.incarnation)
        assert not ring.readers.attach(ring.announcement.max_readers, entry.incarnation)
        assert not ring.readers.attach(1, 0)  # an entry that was never taken holds 0
        assert ring.board.attached(entry.reader_id) == 0
        assert ring.readers.attach(entry.reader_id, entry.incarnation)
        handle = put(ring, 10)
        assert take(ring, entry, handle)
        assert ring.readers.attach(entry.reader_id, entry.incarnation)  # repeated: the lease is still there
        assert ring.stats().leases == 1


def test_what_is_not_of_this_ring_is_not_given_back() -> None:
    with make_ring(num_slots=4) as ring, attached(ring) as entry:
        handle = put(ring, 10)
        assert take(ring, entry, handle)
        wrong: list[dict[str, object]] = [{"ring_id": "f" * 32}, {"epoch": 1}, {"slot": 4}, {"slot": -1}]
        for change in wrong:
            with pytest.raises(LocalProtocolError):
                entry.give_back(msgspec.structs.replace(handle, **change))
        assert ring.stats().leases == 1


def test_taking_an_entry_lowers_no_count_of_the_former_life() -> None:
    """The writer still judges them, until it looks at the locks or hears a Hello."""
    with make_ring() as ring:
        handle, held = put(ring, 10), put(ring, 10)
        with attached(ring) as entry:
            assert take(ring, entry, handle)
            assert take(ring, entry, held)
            entry.give_back(handle)
            assert ring.readers.poll_deaths() == []  # the writer has seen the count
        with ReaderEntry.attach(ring.announcement) as successor:
            assert successor.reader_id == 0
            (event,) = ring.readers.poll_deaths()
            assert isinstance(event, ReaderStopped)
            assert "another process has taken the entry" in event.reason
            assert ring.readers.leases.fenced_readers() == []


def test_a_count_that_no_reader_reaches_is_set_back() -> None:
    with make_ring(num_slots=2) as ring:
        with overwritten(ring.announcement.ctl_name) as words:
            layout = Layout(ring.announcement.data_bytes, 2, ring.announcement.max_readers)
            words[layout.returned_word(0, 0)] = MAX_COUNT + 1
            words[layout.returned_word(0, 1)] = MAX_COUNT
        handle, other = put(ring, 10), put(ring, 10)
        with attached(ring) as entry:
            for each in (handle, other):
                assert take(ring, entry, each)
                entry.give_back(each)
            assert ring.stats().leases == 0


def test_a_closed_entry_gives_nothing_back() -> None:
    with make_ring() as ring:
        handle = put(ring, 10)
        entry = ReaderEntry.attach(ring.announcement)
        entry.close()
        entry.close()
        with pytest.raises(LocalProtocolError):
            entry.give_back(handle)


def test_no_release_store_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_ring() as ring:
        monkeypatch.setattr(words, "_CHOSEN", None)
        with pytest.raises(SegmentError, match="libatomic"):
            ReaderEntry.attach(ring.announcement)
        monkeypatch.undo()
