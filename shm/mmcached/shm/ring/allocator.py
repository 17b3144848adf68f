"""Places the next chunk: a hand sweeps the ring and, of the next places, takes the one that throws away least.

    0                                                          capacity
    ├──A──┤░░├────pinned────┤──C──┤──D──┤░░░├─E─┤─F─┤░░░░░░░░░░┤      ░ free
                            ▲hand            ▲cooler
    places for one as large as C:   C │ D │ free bytes and E │ F and free bytes │ free bytes alone, which cost nothing
    (they begin at the hand and behind each chunk, once around; the chunks that begin in one are its victims)

Books only: no bytes, no memory, no clock. Offsets and sizes are multiples of the alignment by the caller's care. Two
resources are given out, bytes and slot ids, and either may run out first.

**Worth.** A chunk has a heat: 2 when it is placed, 5 more at each hit, at most 15. It is worth its heat times the root
of its size: between one value per chunk, which keeps what is small, and one per byte, which keeps what is large.

**Choice.** Of the next 64 places the one whose victims are worth least; sooner, if one is as cheap as the last chunk's
was, per root of the size. The hand passes over pinned chunks until it has been once around: heat never refuses.

**Cooling.** A second hand, the cooler, moves by half of the bytes that are placed, and halves the heat of each chunk
that it passes: what nobody hits is worth nothing in the end.

**Idle chunks.** Few large chunks that were hot once would keep the hand among the newcomers for long. So what has not
been hit while twice the ring was placed goes with the next plan, wherever it lies; if it is pinned, it begins anew. The
exception is a load that comes back to what it left long ago: after a hit on a chunk that was idle for 3/4 of a ring,
nothing goes for idleness until twice the ring was placed.

Invariants: chunks do not overlap and lie inside the ring; no chunk crosses its end; every slot id is either free or
has exactly one chunk; a plan that is refused or not applied has changed nothing.

>>> ring = RingAllocator(capacity=100, num_slots=8)
>>> def place(size: int, *pinned: int) -> None:
...     plan = ring.plan(size, pinned.__contains__)
...     if plan is None:
...         print("refused")
...         return
...     ring.apply(plan)
...     print(plan.extent, "evicts", [victim.slot for victim in plan.victims])
>>> for size in (20, 30, 50):
...     place(size)
Extent(slot=0, offset=0, size=20) evicts []
Extent(slot=1, offset=20, size=30) evicts []
Extent(slot=2, offset=50, size=50) evicts []
>>> ring.hit(1)
>>> place(20)  # the hand is at 0: slot 0 is the oldest, and the smallest
Extent(slot=3, offset=0, size=20) evicts [0]
>>> place(20)  # slot 1 is hot
Extent(slot=0, offset=50, size=20) evicts [2]
>>> place(30)  # in what is left of that
Extent(slot=2, offset=70, size=30) evicts []
>>> place(30, 0, 2, 3)  # hot or not, it is the only one that may go
Extent(slot=4, offset=20, size=30) evicts [1]
>>> place(31, 0, 2, 3)
refused
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import chain
from math import isqrt
from typing import NamedTuple

from mmcached.shm.ring.places import Pins, Place, choose
from mmcached.wire.errors import InvariantError

NEW_HEAT = 2
HIT_HEAT = 5
MAX_HEAT = 15
COOLER_SPEED = 2  # placed bytes per byte that the cooler moves
IDLE_RINGS = 2  # what was not hit while so many rings were placed goes


class Extent(NamedTuple):
    """Bytes `[offset, offset + size)` that carry slot id `slot`."""

    slot: int
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


class Plan(NamedTuple):
    """A place that was found: evict `victims`, in this order, and `extent` is free.

    Attributes:
        idle: chunks elsewhere that go too, because nobody has asked for them.
        used: slots of idle chunks that are pinned: they count as hit.
    """

    extent: Extent
    victims: tuple[Extent, ...]
    idle: tuple[Extent, ...] = ()
    used: tuple[int, ...] = ()

    @property
    def evicted(self) -> tuple[Extent, ...]:
        return self.victims + self.idle


class RingAllocator:
    """Books of a ring of `capacity` bytes and of slot ids `0 … num_slots - 1`."""

    def __init__(self, capacity: int, num_slots: int) -> None:
        self.capacity = capacity
        self.num_slots = num_slots
        self._hand = 0
        self._paid = (0, 1)  # what the last chunk cost: worth of its victims, root of its size
        self._placed_bytes = 0  # ever
        self._life_bytes = IDLE_RINGS * capacity
        self._long_wait_bytes = 3 * capacity // 4
        self._first_idle_at = 0  # placed bytes before which nothing goes for idleness; for speed, may be too early
        self._shielded_until = 0  # the same for the sake of a hit on what was idle for long
        self._used_bytes = 0
        self._chunks: list[_Chunk] = []  # ascending by offset
        self._offsets: list[int] = []  # theirs, to search in
        self._slot_to_chunk: dict[int, _Chunk] = {}
        self._slot_to_use: dict[int, int] = {}  # placed bytes when it was placed or hit last; the latest are last
        self._free_slots = list(range(num_slots - 1, -1, -1))

    def plan(self, size: int, is_pinned: Callable[[int], bool]) -> Plan | None:
        """Find room for `size` bytes; change nothing.

        Args:
            is_pinned: tells the slots that may not be evicted now; called at most once per slot, twice if it is idle.
        Returns:
            the place and its victims, or None if nothing fits or no slot id can be had.
        """
        pins = Pins(lambda index: is_pinned(self._chunks[index].extent.slot))
        paid, root = self._paid
        bargain = paid * isqrt(size) // root
        found = choose(self._places(size), pins, bargain=bargain)
        if found is None:
            return None
        _, offset, first, last = found
        if first == last and not self._free_slots:  # bytes are free, slot ids are not
            single = choose(self._singles(), pins, bargain=bargain)
            if single is None:
                return None
            _, _, first, last = single
        victims = tuple(chunk.extent for chunk in self._chunks[first:last])
        slot = self._free_slots[-1] if self._free_slots else victims[0].slot
        extent = Extent(slot, offset, size)
        if self._placed_bytes + size < self._first_idle_at:
            return Plan(extent, victims)
        return Plan(extent, victims, *self._idle(self._placed_bytes + size, victims, is_pinned))

    def apply(self, plan: Plan) -> None:
        """Evict the victims, take the place and move both hands. The plan must be fresh."""
        extent = plan.extent
        is_slot_free = bool(self._free_slots)
        if is_slot_free:
            self._free_slots.pop()
        worth = 0
        for victim in plan.victims:
            worth += self._slot_to_chunk[victim.slot].worth
            self._forget(victim)
            if not extent.offset <= victim.offset < extent.end:  # only its slot id was wanted
                self._unlist(victim)
        self._paid = worth, isqrt(extent.size)
        for chunk in plan.idle:
            self._forget(chunk)
            self._unlist(chunk)
        if not is_slot_free:
            self._free_slots.remove(extent.slot)  # the first victim's
        for slot in plan.used:
            self._use(slot)
        self._put(_Chunk(extent))
        self._hand = extent.end
        self._cool(extent.size)
        self._slot_to_use[extent.slot] = self._placed_bytes

    def hit(self, slot: int) -> None:
        """Make a chunk young: it was asked for."""
        if self._placed_bytes - self._slot_to_use[slot] > self._long_wait_bytes:
            self._shielded_until = self._placed_bytes + self._life_bytes
        self._use(slot)
        chunk = self._slot_to_chunk[slot]
        chunk.set_heat(min(chunk.heat + HIT_HEAT, MAX_HEAT))

    def free(self, slot: int) -> None:
        """Give back the bytes and the id of one chunk; the hand goes back to its start if it was placed last."""
        extent = self._slot_to_chunk[slot].extent
        self._forget(extent)
        self._unlist(extent)
        if self._hand == extent.end:
            self._hand = extent.offset

    def extent(self, slot: int) -> Extent:
        return self._slot_to_chunk[slot].extent

    def has(self, slot: int) -> bool:
        return slot in self._slot_to_chunk

    def slots(self) -> list[int]:
        """Return the slots that have a chunk, in order of their offsets."""
        return [chunk.extent.slot for chunk in self._chunks]

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def check_integrity(self) -> None:
        """Raise InvariantError if an invariant of the module's head does not hold."""
        end = 0
        for chunk in self._chunks:
            extent = chunk.extent
            if extent.offset < end or extent.size <= 0:
                raise InvariantError(f"chunk {extent} begins before {end}")
            if extent.offset < self._hand < extent.end:
                raise InvariantError(f"the hand, {self._hand}, is inside chunk {extent}")
            if not 0 <= chunk.heat <= MAX_HEAT or chunk.worth != chunk.heat * isqrt(extent.size):
                raise InvariantError(f"chunk {extent} has heat {chunk.heat} and worth {chunk.worth}")
            end = extent.end
        if end > self.capacity:
            raise InvariantError(f"a chunk ends at {end}, the ring at {self.capacity}")
        if self._offsets != [chunk.extent.offset for chunk in self._chunks]:
            raise InvariantError("chunks and their offsets differ")
        if self._used_bytes != sum(chunk.extent.size for chunk in self._chunks):
            raise InvariantError(f"the chunks do not have {self._used_bytes} bytes")
        uses = list(self._slot_to_use.values())
        if uses != sorted(uses) or self._slot_to_use.keys() != self._slot_to_chunk.keys():
            raise InvariantError("the last uses are not those of the chunks, or not in order")
        taken = {chunk.extent.slot: chunk for chunk in self._chunks}
        if taken != self._slot_to_chunk or len(taken) != len(self._chunks):
            raise InvariantError("chunks by offset and chunks by slot differ")
        if sorted([*taken, *self._free_slots]) != list(range(self.num_slots)):
            raise InvariantError("a slot id is both free and taken, or neither")

    def _idle(
        self, now: int, victims: tuple[Extent, ...], is_pinned: Callable[[int], bool]
    ) -> tuple[tuple[Extent, ...], tuple[int, ...]]:
        """Return what goes because nobody has asked for it, and the slots of what stays because it is pinned."""
        idle, used = list[Extent](), list[int]()
        self._first_idle_at = self._shielded_until
        if now >= self._shielded_until:
            for slot, used_at in self._slot_to_use.items():
                if now - used_at < self._life_bytes:
                    self._first_idle_at = used_at + self._life_bytes
                    break
                if is_pinned(slot):
                    used.append(slot)
                elif (extent := self._slot_to_chunk[slot].extent) not in victims:
                    idle.append(extent)
        return tuple(idle), tuple(used)

    def _use(self, slot: int) -> None:
        self._slot_to_use.pop(slot, None)  # so that it is last
        self._slot_to_use[slot] = self._placed_bytes

    def _places(self, size: int) -> Iterator[Place]:
        """Yield the places for `size` bytes in hand order, once around or until one has no victims."""
        offsets, chunks, num_chunks = self._offsets, self._chunks, len(self._chunks)
        for begin, stop in ((self._hand, self.capacity), (0, self._hand)):
            offset = begin
            first = last = bisect_left(offsets, begin)
            worth = 0  # of chunks[first:last]
            while offset < stop and offset + size <= self.capacity:
                end = offset + size
                while last < num_chunks and offsets[last] < end:
                    worth += chunks[last].worth
                    last += 1
                yield worth, offset, first, last
                if first == last:
                    return  # nothing costs less than no victims
                passed = chunks[first]
                offset = passed.end
                worth -= passed.worth
                first += 1

    def _singles(self) -> Iterator[Place]:
        """Yield each chunk alone in hand order, once around: the places for a slot id without bytes."""
        at_hand = bisect_left(self._offsets, self._hand)
        for index in chain(range(at_hand, len(self._chunks)), range(at_hand)):
            yield self._chunks[index].worth, self._offsets[index], index, index + 1

    def _cool(self, placed: int) -> None:
        """Move the cooler and halve the heat of the chunks whose begin it passes."""
        before = self._placed_bytes // COOLER_SPEED
        self._placed_bytes += placed
        moved = self._placed_bytes // COOLER_SPEED - before
        begin = before % self.capacity
        for start in (begin, begin - self.capacity):  # the second: what goes over the end of the ring
            first = bisect_left(self._offsets, start)
            for chunk in self._chunks[first : bisect_left(self._offsets, start + moved)]:
                chunk.set_heat(chunk.heat // 2)

    def _put(self, chunk: _Chunk) -> None:
        """Enter a chunk in place of those that begin in it: of two long lists the tails move once, or not at all."""
        extent = chunk.extent
        first = bisect_left(self._offsets, extent.offset)
        last = bisect_left(self._offsets, extent.end, first)
        self._offsets[first:last] = [extent.offset]
        self._chunks[first:last] = [chunk]
        self._slot_to_chunk[extent.slot] = chunk
        self._used_bytes += extent.size

    def _unlist(self, extent: Extent) -> None:
        index = bisect_left(self._offsets, extent.offset)
        del self._offsets[index], self._chunks[index]

    def _forget(self, extent: Extent) -> None:
        del self._slot_to_chunk[extent.slot], self._slot_to_use[extent.slot]
        self._free_slots.append(extent.slot)
        self._used_bytes -= extent.size


class _Chunk:
    __slots__ = ("end", "extent", "heat", "worth")

    def __init__(self, extent: Extent) -> None:
        self.extent = extent
        self.end = extent.end  # again, for speed
        self.set_heat(NEW_HEAT)

    def set_heat(self, heat: int) -> None:
        self.heat = heat
        self.worth = heat * isqrt(self.extent.size)
