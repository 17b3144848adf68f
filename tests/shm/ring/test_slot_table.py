from __future__ import annotations

from mmcached.shm.ring.slot_table import SlotRecord, SlotTable, read_slot
from mmcached.shm.segment.layout import SLOT_WORDS

RECORD = SlotRecord(generation=9, offset=64, nbytes=100, note_bytes=3, key=(1, 2), check=7, expires_at=8)
SLOT = 1


def test_a_slot_shows_what_was_filled_valid_only_between_publish_and_retire() -> None:
    words = memoryview(bytearray(3 * 8 * SLOT_WORDS)).cast("Q")
    slots = SlotTable(words)
    slots.fill(SLOT, RECORD)
    assert read_slot(words, SLOT) == (RECORD._replace(generation=0), False)
    slots.publish(SLOT, RECORD.generation)
    assert read_slot(words, SLOT) == (RECORD, True)
    slots.retire(SLOT)
    assert read_slot(words, SLOT) == (RECORD, False)
    slots.restore(SLOT)
    assert read_slot(words, SLOT) == (RECORD, True)
    slots.retire(SLOT)
    slots.seal(SLOT)
    assert read_slot(words, SLOT) == (RECORD, False)
    slots.restore(SLOT)
    assert read_slot(words, SLOT) == (RECORD, True)
    slots.retire(SLOT)
    slots.seal(SLOT)
    slots.erase(SLOT)
    assert words[SLOT_WORDS * SLOT] == 0
    assert [read_slot(words, other) for other in (0, 2)] == [(SlotRecord(0, 0, 0), False)] * 2
