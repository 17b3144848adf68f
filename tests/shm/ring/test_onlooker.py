"""Whoever looks at a ring from outside sees what lies there and who holds it, and leaves no trace."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mmcached.shm import sweep
from mmcached.shm.ring.onlooker import RingOnlooker, state_of
from mmcached.shm.ring.slot_table import NBYTES
from mmcached.shm.segment.layout import SLOT_WORDS
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.wire.errors import SegmentError
from mmcached.wire.handle import RingAnnouncement
from tests.shm.processes import Process
from tests.shm.rings import Taking, attached, make_ring, overwritten, put, reading


def test_what_lies_there_and_who_holds_it() -> None:
    with make_ring(has_index=True) as ring, RingOnlooker(ring.announcement) as onlooker:
        first, second = put(ring, 100, 7), put(ring, 200, 8)
        with attached(ring) as entry, reading(ring) as reader:
            assert entry.take_leases([Taking(first), Taking(second)], reader.look) == [True, True]
            assert entry.take_leases([Taking(first)], reader.look) == [True]
            entry.give_back(second)
            rows = onlooker.rows()
            assert [state_of(row) for row in rows[[first.slot, second.slot]]] == ["valid", "valid"]
            assert onlooker.read(first.slot, rows[first.slot], 90, 100) == bytes([7] * 10)
            (reader_id,) = onlooker.attached()
            assert onlooker.holders(second.slot, [reader_id]) == []
            (holder,) = onlooker.holders(first.slot, [reader_id])
            assert (holder.reader_id, holder.num_leases) == (entry.reader_id, 2)
            ring.records.discard(first)
            assert state_of(onlooker.rows()[first.slot]) == "retired", "it is still read"
            assert onlooker.read(first.slot, rows[first.slot], 0, 1) == b"\7", "and its bytes stay"
            ring.records.discard(second)
            assert state_of(onlooker.rows()[second.slot]) == "free"
            assert onlooker.read(second.slot, rows[second.slot], 0, 1) is None, "which are nobody's by now"
            assert onlooker.notes([first.slot, second.slot], rows) == [b"", None]
            entry.give_back(first)
            entry.give_back(first)
        assert onlooker.attached() == [], "who has ended holds nothing"


def test_it_reads_no_further_than_the_ring_whatever_the_table_says() -> None:
    with make_ring() as ring, RingOnlooker(ring.announcement) as onlooker:
        handle = put(ring, 100)
        with overwritten(ring.announcement.data_name) as words:
            place = ring.announcement.data_bytes
            words[(onlooker.layout.slots_offset // 8) + SLOT_WORDS * handle.slot + NBYTES] = 2 * place
            row = onlooker.rows()[handle.slot]
            assert onlooker.read(handle.slot, row, 0, 2 * place) is None
            words[(onlooker.layout.slots_offset // 8) + SLOT_WORDS * handle.slot + NBYTES] = 100


def test_it_works_on_what_a_dead_writer_has_left_and_gives_no_memory_to_what_has_none() -> None:
    with Process() as writer:
        announced = msgspec.convert(writer.ask("create", 1 << 16), RingAnnouncement)
        with RingOnlooker(announced) as onlooker:
            blocks = _blocks(announced)
            for reader_id in range(announced.max_readers):
                assert onlooker.holders(0, [reader_id]) == []
            assert _blocks(announced) == blocks
            writer.kill()
            assert np.count_nonzero(onlooker.rows()) == 0
    sweep()
    with make_ring() as ring:
        gone = ring.announcement
    with pytest.raises(SegmentError, match="cannot be looked at"):
        RingOnlooker(gone)


def _blocks(announced: RingAnnouncement) -> list[int]:
    names = (announced.ctl_name, announced.data_name)
    return [(SHM_DIR / name.lstrip("/")).lstat().st_blocks for name in names]
