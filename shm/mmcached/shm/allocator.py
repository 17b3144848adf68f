"""Where the next chunk goes: a hand sweeps the ring, steps over what is pinned, and evicts only what lies in its way.

    0                                                          capacity
    ├──A──┤░░├────pinned────┤──C──┤──D──┤░░░░░░├──E──┤░░░░░░░░░┤      ░ free
                            ▲hand
    a chunk as large as C and half of D: evicts C and D, lies where they were; the hand moves to its end

Books only: no bytes, no memory, no clock. Offsets and sizes are multiples of the alignment by the caller's care. Two
resources are given out, bytes and slot ids, and either may run out first.

Invariants: chunks do not overlap and lie inside the ring; no chunk crosses its end; every slot id is either free or
has exactly one chunk; a refused plan has changed nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from mmcached.wire.errors import InvariantError


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes `[offset, offset + size)` that carry slot id `slot`."""

    slot: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Plan:
    """A place that was found: evict `victims`, in this order, and `extent` is free."""

    extent: Extent
    victims: tuple[Extent, ...]


class RingAllocator:
    """Next fit over islands.

    Args:
        capacity: bytes of the ring.
        num_slots: slot ids `0 … num_slots - 1`.
    """

    def __init__(self, capacity: int, num_slots: int) -> None:
        self.capacity = capacity
        self.num_slots = num_slots
        self._hand = 0
        self._offsets: list[int] = []  # of all chunks, ascending
        self._offset_to_extent: dict[int, Extent] = {}
        self._slot_to_extent: dict[int, Extent] = {}
        self._free_slots = list(range(num_slots - 1, -1, -1))

    def plan(self, size: int, is_pinned: Callable[[int], bool]) -> Plan | None:
        """Find room for `size` bytes; change nothing.

        Args:
            is_pinned: whether the chunk of a slot may not be evicted now.
        Returns:
            the place and who must go, or None if nothing fits.
        """
        found = self._first_window(size, self._hand, self.capacity, is_pinned)
        if found is None:
            found = self._first_window(size, 0, self._hand, is_pinned)
        if found is None:
            return None
        offset, victims = found
        if not victims and not self._free_slots:  # bytes are free, slot ids are not
            victim = self._next_evictable(offset, is_pinned)
            if victim is None:
                return None
            victims = [victim]
        slot = self._free_slots[-1] if self._free_slots else victims[0].slot
        return Plan(Extent(slot, offset, size), tuple(victims))

    def apply(self, plan: Plan) -> None:
        """Evict the victims, take the place and move the hand behind it. The plan must be fresh."""
        extent = plan.extent
        is_slot_free = bool(self._free_slots)
        if is_slot_free:
            self._free_slots.pop()
        for victim in plan.victims:
            self._remove(victim)
        if not is_slot_free:
            self._free_slots.remove(extent.slot)  # the first victim's
        insort(self._offsets, extent.offset)
        self._offset_to_extent[extent.offset] = extent
        self._slot_to_extent[extent.slot] = extent
        self._hand = extent.end

    def free(self, slot: int) -> None:
        """Give back the bytes and the id of one chunk. Was it placed last, the hand goes back to its start."""
        extent = self._slot_to_extent[slot]
        self._remove(extent)
        if self._hand == extent.end:
            self._hand = extent.offset

    def extent(self, slot: int) -> Extent:
        return self._slot_to_extent[slot]

    def has(self, slot: int) -> bool:
        """Return whether the slot has a chunk."""
        return slot in self._slot_to_extent

    def slots(self) -> list[int]:
        """Return the slots that have a chunk, in order of their offsets."""
        return [self._offset_to_extent[offset].slot for offset in self._offsets]

    @property
    def used_bytes(self) -> int:
        return sum(extent.size for extent in self._slot_to_extent.values())

    def check_integrity(self) -> None:
        """Raises:
        InvariantError: one of the invariants above does not hold.
        """
        end = 0
        for offset in self._offsets:
            extent = self._offset_to_extent[offset]
            if extent.offset != offset or offset < end or extent.size <= 0:
                raise InvariantError(f"chunk {extent} begins before {end}")
            if offset < self._hand < extent.end:
                raise InvariantError(f"the hand, {self._hand}, is inside chunk {extent}")
            end = extent.end
        if end > self.capacity:
            raise InvariantError(f"a chunk ends at {end}, the ring at {self.capacity}")
        taken = {extent.slot for extent in self._offset_to_extent.values()}
        if taken != set(self._slot_to_extent) or len(taken) != len(self._offsets):
            raise InvariantError("chunks by offset and chunks by slot differ")
        if sorted([*taken, *self._free_slots]) != list(range(self.num_slots)):
            raise InvariantError("a slot id is both free and taken, or neither")

    def _first_window(
        self, size: int, begin: int, last_begin: int, is_pinned: Callable[[int], bool]
    ) -> tuple[int, list[Extent]] | None:
        """Return the first place in `[begin, …]` that begins before `last_begin`, and the chunks in it."""
        start, victims = begin, list[Extent]()
        for extent in self._from(begin):
            if start >= last_begin or extent.offset - start >= size:
                break
            if is_pinned(extent.slot):
                start, victims = extent.end, []
            else:
                victims.append(extent)
                if extent.end - start >= size:
                    break
        fits = start < last_begin and start + size <= self.capacity
        return (start, victims) if fits else None

    def _next_evictable(self, begin: int, is_pinned: Callable[[int], bool]) -> Extent | None:
        """Return the first chunk in hand order, from `begin` once around, that may go."""
        laps = chain(self._from(begin), self._from(0))
        return next((extent for extent in laps if not is_pinned(extent.slot)), None)

    def _from(self, begin: int) -> Iterator[Extent]:
        for index in range(bisect_left(self._offsets, begin), len(self._offsets)):
            yield self._offset_to_extent[self._offsets[index]]

    def _remove(self, extent: Extent) -> None:
        del self._offsets[bisect_left(self._offsets, extent.offset)]
        del self._offset_to_extent[extent.offset]
        del self._slot_to_extent[extent.slot]
        self._free_slots.append(extent.slot)
