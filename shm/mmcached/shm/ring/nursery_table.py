"""State of each slot whose record lies in a nursery: current, or an island (forgotten, but still read under a lease).

A nursery is a writer's segment: a shared-memory file into which one client writes large records.

    free ──publish──> current ──forget──> island ──> free     an island is leased: it is not found, and its bytes stay
                         └──forgotten unleased──> free

These slots are the last ones of the ring's table, so that a slot's number tells which books it belongs to. Pure
bookkeeping: free space inside a nursery is managed elsewhere; `on_free` reports places that no reader can read any
more. Invariants: a slot is in one state; pinned and leased records stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from mmcached.shm.segment.layout import chunk_bytes
from mmcached.wire.errors import CacheFull, InvariantError, LocalProtocolError, StaleHandle
from mmcached.wire.handle import Handle


class PlacedRecord(NamedTuple):
    """Encoded record that a client has written into its nursery, followed by its note.

    Attributes:
        offset, nbytes, note_bytes: Offset and size of the payload, and size of the note, in bytes.
        crc32: Of the payload, computed by the client; None: it was not computed.
    """

    nursery: int
    offset: int
    nbytes: int
    note_bytes: int
    crc32: int | None = None

    @property
    def size(self) -> int:
        """The bytes that it takes in its nursery."""
        return chunk_bytes(self.nbytes + self.note_bytes)


class Placed(NamedTuple):
    """Bytes `[offset, offset + size)` of a nursery that belong to a slot."""

    nursery: int
    offset: int
    size: int


class NurseryTable:
    """The slots of all nurseries of one ring.

    Args:
        slots: The slots' numbers.
        is_leased: Returns whether a living reader may still read a slot's record.

    Attributes:
        on_free: Called with the slot and the place of a freed record, after the slot was erased.
    """

    def __init__(self, slots: range, *, is_leased: Callable[[int], bool]) -> None:
        self.slots = slots
        self.on_free: Callable[[int, Placed], None] = _nobody
        self._is_leased = is_leased
        self._free_slots = list(reversed(slots))
        self._slot_to_handle: dict[int, Handle] = {}
        self._slot_to_place: dict[int, Placed] = {}
        self._islands: dict[int, None] = {}
        self._hit: set[int] = set()
        self._pins: Counter[int] = Counter()
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._slot_to_handle)

    def __iter__(self) -> Iterator[Handle]:
        """Iterate over a copy of the current records."""
        return iter(list(self._slot_to_handle.values()))

    def adopt(self, current: Iterable[tuple[Handle, Placed]], islands: Iterable[tuple[int, Placed]]) -> None:
        """Take over the records of a former writer, the oldest first, in a table without records."""
        for handle, place in current:
            self._enter(handle.slot, place)
            self._slot_to_handle[handle.slot] = handle
        for slot, place in islands:
            self._enter(slot, place)
            self._islands[slot] = None
        self._free_slots = [slot for slot in reversed(self.slots) if slot not in self._slot_to_place]

    @property
    def num_free(self) -> int:
        """The number of records that can still be published."""
        return len(self._free_slots)

    def check_free(self, nbytes: int) -> None:
        """Raise CacheFull if no slot is free."""
        if not self._free_slots:
            raise CacheFull(nbytes, self.used_bytes, self.used_bytes)

    def next_slot(self) -> int:
        """Return the slot that the next record gets; requires a free slot."""
        return self._free_slots[-1]

    def publish(self, handle: Handle, place: Placed) -> None:
        """Take the next slot for a record."""
        self._free_slots.pop()
        self._enter(handle.slot, place)
        self._slot_to_handle[handle.slot] = handle

    # ---- current records

    def is_current(self, handle: Handle) -> bool:
        return self._slot_to_handle.get(handle.slot) == handle

    def current(self, slot: int) -> Handle | None:
        return self._slot_to_handle.get(slot)

    def check_current(self, handle: Handle) -> None:
        """Raise StaleHandle if the handle's record is not current."""
        if not self.is_current(handle):
            raise StaleHandle(f"slot {handle.slot} does not hold generation {handle.generation} any more")

    def place(self, slot: int) -> Placed:
        """Return the place of a slot's record, current or island."""
        return self._slot_to_place[slot]

    @property
    def last_slot(self) -> int | None:
        """The most recently taken slot that is still taken; None if no slot is taken."""
        return next(reversed(self._slot_to_place), None)

    def places(self) -> list[tuple[int, Placed]]:
        """Return the taken slots and the places of their records, islands included, the oldest first."""
        return list(self._slot_to_place.items())

    def touch(self, handle: Handle) -> None:
        self._hit.add(handle.slot)

    def was_hit(self, handle: Handle) -> bool:
        """Return whether a record was requested since it was put."""
        return handle.slot in self._hit

    def pin(self, handle: Handle) -> None:
        self._pins[handle.slot] += 1

    def unpin(self, handle: Handle) -> None:
        """Remove one pin; raise LocalProtocolError if the slot has none."""
        if not self._pins[handle.slot]:
            raise LocalProtocolError(f"slot {handle.slot} is not pinned")
        self._pins[handle.slot] -= 1

    def is_kept(self, slot: int) -> bool:
        return self._pins.get(slot, 0) > 0 or self._is_leased(slot)

    def forget(self, handle: Handle, *, is_leased: bool) -> None:
        """Remove a current record: a leased one becomes an island, the place of any other is freed."""
        slot = handle.slot
        del self._slot_to_handle[slot]
        self._pins.pop(slot, None)
        self._hit.discard(slot)
        if is_leased:
            self._islands[slot] = None
        else:
            self._leave(slot)

    @property
    def islands(self) -> list[int]:
        """The slots that were leased when their records were forgotten."""
        return list(self._islands)

    def free_island(self, slot: int) -> None:
        """Free an island that no reader reads any more."""
        del self._islands[slot]
        self._leave(slot)

    # ---- the object

    def kept_bytes(self) -> int:
        """Return the bytes of leased or pinned records."""
        return sum(place.size for slot, place in self._slot_to_place.items() if self.is_kept(slot))

    def close(self) -> None:
        """Drop the references to the leases."""
        self._is_leased = _nothing_leased
        self.on_free = _nobody

    def check_integrity(self) -> None:
        """Raise InvariantError if the books contradict each other."""
        taken = self._slot_to_place.keys()
        if (
            self._slot_to_handle.keys() | self._islands.keys() != taken
            or self._slot_to_handle.keys() & self._islands.keys()
        ):
            raise InvariantError("a slot of a nursery is both current and an island, or neither")
        if sorted([*taken, *self._free_slots]) != list(self.slots):
            raise InvariantError("a slot of a nursery is both free and taken, or neither")
        if self.used_bytes != sum(place.size for place in self._slot_to_place.values()):
            raise InvariantError(f"{self.used_bytes} bytes are said to lie in nurseries")
        ends: dict[int, int] = {}
        for nursery, offset, size in sorted(self._slot_to_place.values()):
            if offset < ends.get(nursery, 0):
                raise InvariantError(f"two records overlap in nursery {nursery}, at {offset}")
            ends[nursery] = offset + size

    def _enter(self, slot: int, place: Placed) -> None:
        self._slot_to_place[slot] = place
        self.used_bytes += place.size

    def _leave(self, slot: int) -> None:
        place = self._slot_to_place.pop(slot)
        self.used_bytes -= place.size
        self._free_slots.append(slot)
        self.on_free(slot, place)


def _nobody(slot: int, place: Placed) -> None:
    pass


def _nothing_leased(slot: int) -> bool:
    return False
