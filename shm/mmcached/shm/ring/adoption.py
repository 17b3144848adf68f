"""Takes over what a dead writer has left in a ring, out of the slot table alone.

    valid, above the floor            current again
    valid, not above it; retired      under lease: an island; else erased
    0                                 free: whatever was claimed, or half written, is in no slot

Readers look up and take leases meanwhile: what they may find stays valid all the time. The table is believed as far as
it can be true: one wrong record, and the ring is not adopted.

Invariants: no byte is written; what was current is current again, unless it lies below the floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.allocator import Extent
from mmcached.shm.ring.chunks import ChunkTable
from mmcached.shm.ring.key_index import KeyIndexWriter
from mmcached.shm.ring.self_lease import seal
from mmcached.shm.ring.slot_table import NO_KEY, SlotRecord, SlotTable, read_slot
from mmcached.shm.segment.board import Board
from mmcached.shm.segment.layout import ALIGNMENT, SLOT_WORDS, chunk_bytes
from mmcached.shm.segment.mapped import Tables
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.errors import InvariantError, SegmentError
from mmcached.wire.handle import Handle


def adopt_chunks(
    tables: Tables,
    board: Board,
    chunks: ChunkTable,
    index: KeyIndexWriter | None,
    *,
    is_leased: Callable[[int], bool],
    handle_of: Callable[[int, SlotRecord], Handle],
) -> None:
    """Fill the books of a new writer, and make index and slots agree with them.

    Args:
        is_leased: of a slot, by a living reader.
        handle_of: names the chunk in a slot.
    Raises:
        SegmentError: a record cannot be, or contradicts another.
    """
    slots = SlotTable(tables.slots)
    current: list[tuple[int, SlotRecord]] = []
    gone: list[tuple[int, SlotRecord]] = []
    for slot, record, is_valid in _records(tables.slots, chunks.num_slots):
        _check(slot, record, chunks.capacity, board.last_generation())
        (current if is_valid and record.generation > board.floor() else gone).append((slot, record))
    for slot, _ in gone:
        slots.retire(slot)
    islands = []
    for slot, record in gone:
        if seal(require_word_store(), slots, [slot], is_leased):
            slots.erase(slot)
        else:
            islands.append(_extent(slot, record))
    crash_point("adopt.after_erase")
    current.sort(key=lambda each: each[1].generation)
    placed = [(handle_of(slot, record), _extent(slot, record)) for slot, record in current]
    try:
        chunks.adopt(placed, islands, board.last_generation())
    except InvariantError as error:
        raise SegmentError(f"the slot table contradicts itself: {error}") from error
    if index is not None:
        slot_to_key = {slot: record.key for slot, record in current if record.key != NO_KEY}
        if len(set(slot_to_key.values())) < len(slot_to_key):
            raise SegmentError("the slot table has a key twice")
        index.adopt(slot_to_key)
    crash_point("adopt.after_index")


def _records(words: memoryview, num_slots: int) -> Iterator[tuple[int, SlotRecord, bool]]:
    for slot in range(num_slots):
        if words[SLOT_WORDS * slot]:
            record, is_valid = read_slot(words, slot)
            yield slot, record, is_valid


def _extent(slot: int, record: SlotRecord) -> Extent:
    return Extent(slot, record.offset, chunk_bytes(record.nbytes + record.note_bytes))


def _check(slot: int, record: SlotRecord, capacity: int, last_generation: int) -> None:
    room = capacity - record.offset
    if (
        record.offset % ALIGNMENT
        or not 1 <= record.nbytes <= room
        or record.note_bytes > room - record.nbytes
        or not 1 <= record.generation <= last_generation
    ):
        raise SegmentError(f"slot {slot} cannot hold {record} in a ring of {capacity} bytes")
