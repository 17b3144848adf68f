"""Takes over the ring of a dead writer, from its slot table alone.

    valid, generation above the floor         current again; of two with one key the later one (the writer died while
                                              it replaced the earlier one)
    valid at or below the floor; or retired   an island if leased: not found, but its bytes stay; else erased
    0                                         free: claims and half-written records are in no slot

Nurseries (shared-memory files into which clients write large records) are adopted with the ring; a record whose nursery
is missing is dropped. No client writes into an adopted nursery any more.

Readers look up and take leases meanwhile: records that remain current stay valid throughout. The table is checked for
consistency: one impossible record, and the ring is not adopted. It is read and checked as arrays: with a million
records, each step in Python costs a second.

Invariants: no byte of a record is written; every record that was current is current again, unless it lies at or below
the floor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.allocator import Extent
from mmcached.shm.ring.chunks import ChunkTable
from mmcached.shm.ring.key_index import KeyIndexWriter, marks_of
from mmcached.shm.ring.nursery_table import NurseryTable, Placed
from mmcached.shm.ring.self_lease import seal
from mmcached.shm.ring.slot_table import (
    FIRST_KEY,
    GENERATION,
    IS_SEALED,
    MAX_NOTE_BYTES,
    NBYTES,
    NOTE_BYTES,
    NURSERY_SHIFT,
    OFFSET,
    SECOND_KEY,
    SlotTable,
    read_table,
)
from mmcached.shm.segment.board import Board
from mmcached.shm.segment.layout import ALIGNMENT
from mmcached.shm.segment.mapped import Tables
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.errors import InvariantError, SegmentError
from mmcached.wire.handle import Handle

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
_logger = logging.getLogger(__name__)


def occupied_slots(tables: Tables) -> list[int]:
    """Return the slots with a record, those of nurseries included: only these can be leased."""
    occupied: list[int] = np.flatnonzero(read_table(tables.slots)[:, GENERATION]).tolist()
    return occupied


def adopt_chunks(
    tables: Tables,
    board: Board,
    chunks: ChunkTable,
    placed: NurseryTable,
    index: KeyIndexWriter | None,
    *,
    is_leased: Callable[[int], bool],
    handles_of: Callable[[list[int], list[int], list[int], list[int], list[int]], list[Handle]],
    nursery_bytes: Callable[[int], int],
) -> None:
    """Fill the books of a new writer, and make index and slots agree with them.

    Args:
        is_leased: Returns whether a living reader has a lease of a slot.
        handles_of: Makes handles from lists of slots, generations, offsets, sizes in bytes and nursery ids.
        nursery_bytes: Returns the size of a nursery in bytes; 0 if it is missing.

    Raises:
        SegmentError: A record is invalid, or two overlap.
    """
    slots = _read_slots(tables, chunks, board.last_generation(), nursery_bytes)
    current = _current(slots, board.floor())
    if index is not None:  # before any slot is retired: the new record is found before the old one is not
        rows = slots.table[current]
        has_key = rows[:, FIRST_KEY : SECOND_KEY + 1].any(axis=1)
        index.adopt(marks_of(rows[has_key, FIRST_KEY], current[has_key]))
    crash_point("adopt.after_index")
    islands = _remove_others(slots, current, SlotTable(tables.slots), is_leased)
    crash_point("adopt.after_erase")

    def handles(of: npt.NDArray[np.intp]) -> list[Handle]:
        rows = slots.table[of]
        columns = (of, slots.generations[of], rows[:, OFFSET], rows[:, NBYTES], slots.nurseries[of])
        return handles_of(*(column.tolist() for column in columns))

    def place(extent: Extent) -> Placed:
        return Placed(int(slots.nurseries[extent.slot]), extent.offset, extent.size)

    in_ring, in_nurseries = current[~slots.is_placed[current]], current[slots.is_placed[current]]
    main_islands = [extent for extent in islands if not slots.is_placed[extent.slot]]
    placed_islands = [(extent.slot, place(extent)) for extent in islands if slots.is_placed[extent.slot]]
    try:
        chunks.adopt(handles(in_ring), _extents(slots.table, in_ring), main_islands, board.last_generation())
        places = map(place, _extents(slots.table, in_nurseries))
        placed.adopt(zip(handles(in_nurseries), places, strict=True), placed_islands)
        placed.check_integrity()
    except InvariantError as error:
        raise SegmentError(f"the slot table contradicts itself: {error}") from error


_ONE, _UNSEALED = np.uint64(1), np.uint64(IS_SEALED - 1)


class _Slots(NamedTuple):
    """A checked copy of the slot table, as arrays with a row for each slot.

    Attributes:
        table: `(num_slots, 8)` uint64, as in `slot_table`, without the nurseries' ids.
        generations, nurseries: uint64; of a record in the ring the nursery is 0.
        is_taken: bool; the slot has a record.
        is_gone: bool; the record lies in a nursery that is missing, or behind the end of one that was truncated.
        is_placed: bool; the slot is for records in nurseries.
    """

    table: Words
    generations: Words
    nurseries: Words
    is_taken: Flags
    is_gone: Flags
    is_placed: Flags


def _read_slots(
    tables: Tables, chunks: ChunkTable, last_generation: int, nursery_bytes: Callable[[int], int]
) -> _Slots:
    """Copy the slot table; raise SegmentError if a record is invalid."""
    table = read_table(tables.slots)
    nurseries = table[:, NOTE_BYTES] >> np.uint64(NURSERY_SHIFT)
    table[:, NOTE_BYTES] &= np.uint64(MAX_NOTE_BYTES)
    is_taken = table[:, GENERATION] != 0
    nurseries[~is_taken] = 0
    generations = (table[:, GENERATION] & _UNSEALED) >> _ONE
    capacities = np.full(len(table), chunks.capacity, np.uint64)
    lying = np.flatnonzero(nurseries)
    ids, of_each = np.unique(nurseries[lying], return_inverse=True)
    capacities[lying] = np.array([nursery_bytes(nursery) for nursery in ids.tolist()], np.uint64)[of_each]
    is_gone = (nurseries != 0) & (table[:, OFFSET] + table[:, NBYTES] + table[:, NOTE_BYTES] > capacities)
    is_placed = np.arange(len(table)) >= chunks.num_slots
    _check(table, generations, capacities, is_taken & ~is_gone, last_generation)
    if wrong := np.flatnonzero(is_taken & (is_placed != (nurseries != 0))).tolist():
        raise SegmentError(f"slot {wrong[0]} names nursery {nurseries[wrong[0]]}: the slots were divided otherwise")
    return _Slots(table, generations, nurseries, is_taken, is_gone, is_placed)


def _current(slots: _Slots, floor: int) -> npt.NDArray[np.intp]:
    """Return the slots whose records are current again, in the order of their generations."""
    is_valid = (slots.table[:, GENERATION] & _ONE).astype(bool) & (slots.generations > floor)
    for nursery in np.unique(slots.nurseries[slots.is_gone]).tolist():
        num_records = np.count_nonzero(slots.is_gone & (slots.nurseries == nursery) & is_valid)
        _logger.warning("%d records of nursery %d were not taken over: their bytes are not there", num_records, nursery)
    is_current = is_valid & ~slots.is_gone
    is_current[_replaced(slots.table, slots.generations, np.flatnonzero(is_current))] = False
    current = np.flatnonzero(is_current)
    ordered: npt.NDArray[np.intp] = current[np.argsort(slots.generations[current])]
    return ordered


def _remove_others(
    slots: _Slots, current: npt.NDArray[np.intp], words: SlotTable, is_leased: Callable[[int], bool]
) -> list[Extent]:
    """Retire all records that are not current, erase those without a lease, and return the others."""
    is_other = slots.is_taken.copy()
    is_other[current] = False
    others = np.flatnonzero(is_other)
    for slot in others.tolist():
        words.retire(slot)
    islands = []
    for slot, extent in zip(others.tolist(), _extents(slots.table, others), strict=True):
        if seal(require_word_store(), words, [slot], is_leased):
            words.erase(slot)
        else:
            islands.append(extent)
    return islands


def _extents(table: Words, slots: npt.NDArray[np.intp]) -> list[Extent]:
    rows = table[slots]
    sizes = (rows[:, NBYTES] + rows[:, NOTE_BYTES] + np.uint64(ALIGNMENT - 1)) & np.uint64(-ALIGNMENT % 2**64)
    columns = slots.tolist(), rows[:, OFFSET].tolist(), sizes.tolist()
    return list(
        map(partial(tuple.__new__, Extent), zip(*columns, strict=True))
    )  # `Extent(…)` takes three times as long


def _check(
    table: Words, generations: Words, capacities: Words, is_taken: npt.NDArray[np.bool_], last_generation: int
) -> None:
    offsets, nbytes, room = table[:, OFFSET], table[:, NBYTES], capacities - table[:, OFFSET]
    is_right = (
        (offsets % np.uint64(ALIGNMENT) == 0)
        & (offsets <= capacities)
        & (nbytes >= 1)
        & (nbytes <= room)
        & (table[:, NOTE_BYTES] <= room - nbytes)
        & (generations >= 1)
        & (generations <= last_generation)
    )
    wrong = np.flatnonzero(is_taken & ~is_right)
    if wrong.size:
        slot = int(wrong[0])
        raise SegmentError(f"slot {slot} cannot hold {table[slot].tolist()} in {capacities[slot]} bytes")


def _replaced(table: Words, generations: Words, slots: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return those of these slots whose key a slot of a later generation has too."""
    keys = table[slots, FIRST_KEY : SECOND_KEY + 1]
    order = np.lexsort((generations[slots], keys[:, 1], keys[:, 0]))
    keys = keys[order]
    is_replaced = (keys[1:] == keys[:-1]).all(axis=1) & keys[1:].any(axis=1)
    found: npt.NDArray[np.intp] = slots[order[:-1][is_replaced]]
    return found
