"""Places the next chunk with two hands that go around the ring: one evicts from probation, the other chunks not hit.

    0                                                                 capacity
    ├──A──┤░░├────pinned────┤──C──┤──D──┤░░░├─e─┤─f─┤░░░░░░░░░░┤      ░ free      e, f on probation
                            ▲hand       ▲probation's hand
    places for a chunk as large as C:   C │ D │ free bytes and e │ f and free bytes │ free bytes alone, price 0
    (places begin at the hand and behind each chunk, once around; the chunks that begin in one are its victims)

Pure bookkeeping: no payload, no memory, no clock. Offsets and sizes are multiples of the alignment; the caller ensures
that. Two resources are allocated, bytes and slot ids, and either may run out first. The hands walk along linked chunks:
nothing is searched, so the cost of a place is that of the chunks passed and evicted for it, independent of their total
number.

The policy is S3-FIFO (SOSP '23) with both queues in one ring:

**Probation.** A chunk begins on probation, unless `prove` says that its content was requested before. While chunks on
probation hold more than a tenth of the ring, the probation hand places the next chunk, and evicts chunks on probation
without a hit. A chunk that was hit leaves probation when a hand passes it.

**Hits.** Otherwise the main hand places the chunk. It spares chunks that were hit since it last passed: a chunk counts
three hits at most, and loses one at each pass.

**Worth.** A chunk that cost much for its bytes is worth more: each of its hits counts for `1 + worth` hits, up to
`3 + worth`, and it begins with `worth` hits, so that it leaves probation without one.

**Holes.** Free bytes behind a hand, or where a chunk was freed last, are used before any chunk is evicted.

**Choice.** The first of the next 128 places that evicts no chunk which the hand would spare; otherwise the place with
the lowest price: for either hand the hits of its victims, for the probation hand also one for each victim that is not
on probation. So a large chunk goes where the fewest chunks with hits lie. The hand passes over pinned chunks until it
has been once around: hits alone never refuse an allocation.

**Returns.** Content that returns after its eviction is proven. But in a loop larger than the ring all content returns
and nothing is hit. So `admits_return` answers yes at a rate between a tenth and one: the rate rises when a proven chunk
is hit for the first time, and falls when one is evicted without a hit.

Invariants: chunks do not overlap and lie inside the ring; no chunk crosses its end; every slot id is either free or has
exactly one chunk; a plan that is refused or not applied has changed nothing.

>>> ring = RingAllocator(capacity=100, num_slots=8)
>>> def place(size: int, *pinned: int, is_proven: bool = True) -> None:
...     plan = ring.plan(size, pinned.__contains__)
...     if plan is None:
...         print("refused")
...         return
...     ring.apply(plan)
...     if is_proven:
...         ring.prove(plan.extent.slot)
...     print(plan.extent, "evicts", [victim.slot for victim in plan.victims])
>>> for size in (20, 30, 50):
...     place(size)
Extent(slot=0, offset=0, size=20) evicts []
Extent(slot=1, offset=20, size=30) evicts []
Extent(slot=2, offset=50, size=50) evicts []
>>> ring.hit(0)
>>> place(20)  # slot 0 is spared, and loses its hit
Extent(slot=3, offset=20, size=20) evicts [1]
>>> place(20, is_proven=False)
Extent(slot=1, offset=40, size=20) evicts [2]
>>> place(30)
Extent(slot=2, offset=60, size=30) evicts []
>>> place(20)  # more than a tenth of the ring is on probation
Extent(slot=4, offset=40, size=20) evicts [1]
>>> place(31, 0, 2, 3, 4)
refused
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

from mmcached.shm.ring.chain import Chunk, Extent
from mmcached.shm.ring.places import Pins, Place, choose
from mmcached.wire.errors import InvariantError

__all__ = ["EvictionPlan", "Extent", "RingAllocator"]

MAX_HITS = 3
PROBATION_SHARE = 10  # chunks on probation are evicted first while they hold more than 1/10 of the ring
FULL_RATE = 10
"""`admits_return` admits `rate / FULL_RATE` of the returns; the rate is between 1 and `FULL_RATE`."""
RATE_UP, RATE_DOWN = 2, 1
MAIN, PROBATION, HOLE = range(3)
"""The hands; the third is where a chunk was freed last, and evicts nothing."""


class EvictionPlan(NamedTuple):
    """A found place: once `victims` are evicted, in this order, `extent` is free.

    Attributes:
        after: Slot of the chunk behind which extent and victims begin; -1 at the start of the ring.
        hand: The hand that moves there.
    """

    extent: Extent
    victims: tuple[Extent, ...]
    after: int = -1
    hand: int = MAIN


class RingAllocator:
    """Bookkeeping of a ring's `capacity` bytes and its slot ids `0 … num_slots - 1`."""

    def __init__(self, capacity: int, num_slots: int) -> None:
        self.capacity = capacity
        self.num_slots = num_slots
        self._edge = Chunk.edge(capacity)
        self._hands = [self._edge] * 3  # the chunk that each hand has passed last
        self._probation_limit = capacity // PROBATION_SHARE
        self._probation_bytes = 0
        self._used_bytes = 0
        self._rate = FULL_RATE
        self._credit = 0  # below FULL_RATE
        self._slot_to_chunk: dict[int, Chunk] = {}
        self._freed_slots: list[int] = []
        self._next_slot = 0  # this slot and all later ones were never taken

    def plan(self, size: int, is_pinned: Callable[[int], bool]) -> EvictionPlan | None:
        """Find a place for `size` bytes; change nothing.

        Args:
            is_pinned: Returns whether a slot may not be evicted now; called at most once per slot.

        Returns:
            The place and its victims, or None if nothing fits or no slot id is available.
        """
        has_slot = bool(self._freed_slots) or self._next_slot < self.num_slots
        if has_slot:
            slot = self._freed_slots[-1] if self._freed_slots else self._next_slot
            for hand, before in enumerate(self._hands):
                if before.end + size <= before.next.offset:
                    return EvictionPlan(Extent(slot, before.end, size), (), before.extent.slot, hand)
        hand = PROBATION if self._probation_bytes > self._probation_limit else MAIN
        row: list[Chunk] = []
        places = self._places(hand, size, row, has_slot=has_slot)
        found = choose(places, Pins(row, lambda chunk: is_pinned(chunk.extent.slot)))
        if found is None:
            return None
        _, offset, first, last = found
        victims = tuple([chunk.extent for chunk in row[first:last]])
        if not has_slot:
            slot = victims[0].slot
        return EvictionPlan(Extent(slot, offset, size), victims, row[first - 1].extent.slot, hand)

    def apply(self, plan: EvictionPlan) -> None:
        """Evict the victims, enter the chunk on probation and move the hand.

        Nothing may have changed since the plan was made.
        """
        after = self._slot_to_chunk.get(plan.after, self._edge)
        self._pass(plan.hand, after)
        is_victims_slot = not self._freed_slots and self._next_slot == self.num_slots
        if self._freed_slots:
            self._freed_slots.pop()
        elif not is_victims_slot:
            self._next_slot += 1
        for victim in plan.victims:
            if self._remove(victim.slot).is_untested:
                self._rate = max(self._rate - RATE_DOWN, 1)
        if is_victims_slot:
            self._freed_slots.remove(plan.extent.slot)  # the slot of the first victim
        self._hands[plan.hand] = self._enter(plan.extent, after)

    def prove(self, slot: int) -> None:
        """Take a chunk that was just placed off probation: its content was requested before."""
        chunk = self._slot_to_chunk[slot]
        self._leave_probation(chunk)
        chunk.is_untested = True

    def value(self, slot: int, worth: int) -> None:
        """Set the worth of a chunk that was just placed; 0: as any other."""
        chunk = self._slot_to_chunk[slot]
        chunk.worth = worth
        if worth > chunk.hits:
            chunk.set_hits(worth)

    def admits_return(self) -> bool:
        """Return whether content that returns after its eviction is to be proven; see "Returns" above."""
        self._credit += self._rate
        if self._credit < FULL_RATE:
            return False
        self._credit -= FULL_RATE
        return True

    def hit(self, slot: int) -> None:
        """Count a hit of a chunk, so that a hand spares it."""
        chunk = self._slot_to_chunk[slot]
        most = MAX_HITS + chunk.worth
        if chunk.hits < most:
            chunk.set_hits(min(chunk.hits + 1 + chunk.worth, most))
        if chunk.is_untested:
            chunk.is_untested = False
            self._rate = min(self._rate + RATE_UP, FULL_RATE)

    def free(self, slot: int) -> None:
        """Free the bytes and the slot id of one chunk; the next chunk may be placed there."""
        self._hands[HOLE] = self._remove(slot).prev

    def place(self, extent: Extent) -> None:
        """Enter a chunk that already lies in the ring, on probation; call `resume_at` after the last one.

        The cost grows with the number of chunks behind it: enter chunks in the order of their offsets.

        Raises:
            InvariantError: Its bytes or its slot are taken or outside the ring; nothing has changed.
        """
        slot, offset, size = extent
        end = offset + size
        before = self._edge.last_before(end)
        if size <= 0 or offset < before.end or end > before.next.offset:
            raise InvariantError(f"{extent} has no room in a ring of {self.capacity} bytes behind {before.extent}")
        if not 0 <= slot < self.num_slots or slot in self._slot_to_chunk:
            raise InvariantError(f"the slot of {extent} is not one of {self.num_slots}, or taken")
        self._enter(extent, before)

    def resume_at(self, offset: int) -> None:
        """Put the hands behind the last chunk that ends at or before `offset`; mark slots without a chunk as free."""
        before = self._edge.last_before(offset)
        if not before.end <= offset <= self.capacity:
            raise InvariantError(f"the hand, {offset}, is inside chunk {before.extent} or beyond {self.capacity}")
        self._hands = [before] * 3
        self._next_slot = max(self._slot_to_chunk, default=-1) + 1
        self._freed_slots = [slot for slot in range(self._next_slot) if slot not in self._slot_to_chunk]

    def extent(self, slot: int) -> Extent:
        return self._slot_to_chunk[slot].extent

    def has(self, slot: int) -> bool:
        return slot in self._slot_to_chunk

    def slots(self) -> list[int]:
        """Return the slots that have a chunk, in the order of their offsets."""
        return [chunk.extent.slot for chunk in self._edge.others()]

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def _places(self, hand: int, size: int, row: list[Chunk], *, has_slot: bool) -> Iterator[Place]:
        """Yield the places for `size` bytes in a hand's order, once around or until one has no victims.

        Args:
            row: Receives the chunks that are passed; the chunks of a place follow the chunk behind which the place
                begins.
            has_slot: Whether a slot id is free; otherwise a place has at least one victim, for its id.
        """
        price_of = _price if hand == PROBATION else _hits
        for before, stop in ((self._hands[hand], self.capacity), (self._edge, self._hands[hand].end)):
            row.append(before)
            first = last = len(row)
            begin = end = before.next  # the place's first chunk, and the first behind it
            price = 0
            start = before.end
            while start < stop and start + size <= self.capacity:
                place_end = start + size
                if not has_slot and begin is end:
                    if end is self._edge:
                        break
                    place_end = max(place_end, end.end)
                while end.offset < place_end:
                    price += price_of(end)
                    row.append(end)
                    last += 1
                    end = end.next
                yield price, start, first, last
                if first == last:
                    return  # no place costs less
                start = begin.end
                price -= price_of(begin)
                first += 1
                begin = begin.next

    def _pass(self, hand: int, last: Chunk) -> None:
        """Move a hand over the chunks that it spares, up to and including `last`."""
        chunk = self._hands[hand]
        while chunk is not last:
            chunk = chunk.next
            if not chunk.hits:
                continue
            if chunk.is_on_probation:
                self._leave_probation(chunk)
            elif hand == MAIN:
                chunk.set_hits(chunk.hits - 1)

    def _enter(self, extent: Extent, before: Chunk) -> Chunk:
        """Enter a chunk on probation into all books, and return it."""
        chunk = Chunk(extent)
        chunk.link(before)
        self._slot_to_chunk[extent.slot] = chunk
        self._used_bytes += extent.size
        self._probation_bytes += extent.size
        return chunk

    def _leave_probation(self, chunk: Chunk) -> None:
        chunk.leave_probation()
        self._probation_bytes -= chunk.extent.size

    def _remove(self, slot: int) -> Chunk:
        chunk = self._slot_to_chunk.pop(slot)
        self._hands = [hand.prev if hand is chunk else hand for hand in self._hands]
        chunk.unlink()
        self._freed_slots.append(slot)
        self._used_bytes -= chunk.extent.size
        if chunk.is_on_probation:
            self._probation_bytes -= chunk.extent.size
        return chunk


_hits: Callable[[Chunk], int] = attrgetter("hits")
_price: Callable[[Chunk], int] = attrgetter("price")
