"""Places the next chunk: a hand sweeps the ring and, of the next places, takes the one that throws away least.

    0                                                          capacity
    ├──A──┤░░├────pinned────┤──C──┤──D──┤░░░├─E─┤─F─┤░░░░░░░░░░┤      ░ free
                            ▲hand            ▲cooler
    places for one as large as C:   C │ D │ free bytes and E │ F and free bytes │ free bytes alone, which cost nothing
    (they begin at the hand and behind each chunk, once around; the chunks that begin in one are its victims)

Books only: no bytes, no memory, no clock. Offsets and sizes are multiples of the alignment by the caller's care. Two
resources are given out, bytes and slot ids, and either may run out first. Both hands walk along linked chunks: nothing
is searched, so the cost of a place is that of what is passed and evicted for it, however many chunks there are.

**Worth.** A chunk has a heat: 1 when it is placed, 5 more at each hit, at most 15. It is worth its heat, and a
sixteenth, times the root of its size: between one value per chunk, which keeps what is small, and one per byte, which
keeps what is large. So what is cold is worth little, but more than a hole.

**Age.** The ring ages by an eighth of each chunk that is placed, and by the rest when that is hit for the first time:
what is asked for once only, however much of it there is, does not make old what is used.

**Return.** What comes back a short time after it was evicted should have stayed, in place of what is not used any more.
So its heat is 4, and the ring ages by five times its size: newcomers last longer then, until they are hit.

**Choice.** Of the next 64 places the one whose victims are worth least; sooner, if one is as cheap as the last chunk's
was, per root of the size. The hand passes over pinned chunks until it has been once around: heat never refuses.

**Cooling.** A second hand, the cooler, moves by half of the bytes by which the ring ages, and halves the heat of each
chunk that it passes: what nobody hits is worth next to nothing in the end.

**Idle chunks.** Few large chunks that were hot once would keep the hand among the newcomers for long. So what has not
been hit while the ring aged by twice its size goes with the next plans, wherever it lies, 256 at a time; if it is
pinned, it begins anew. The exception is a load that comes back to what it left long ago: after a hit on a chunk that
was idle for 3/4 of the ring's size, nothing goes for idleness until the ring has aged by twice its size.

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
>>> place(20)  # slot 1 is hot, slot 2 larger than the newcomer, for which nobody has asked
Extent(slot=0, offset=0, size=20) evicts [3]
>>> place(30)
Extent(slot=3, offset=50, size=30) evicts [2]
>>> place(30, 0, 3)  # hot or not, it is the only one that may go
Extent(slot=2, offset=20, size=30) evicts [1]
>>> place(31, 0, 2, 3)
refused
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import isqrt
from typing import NamedTuple

from mmcached.shm.ring.chain import NEW_HEAT, Chunk, Extent, worth_of
from mmcached.shm.ring.places import Pins, Place, choose
from mmcached.wire.errors import InvariantError

__all__ = ["NEW_HEAT", "Extent", "Plan", "RingAllocator"]

HIT_HEAT = 5
MAX_HEAT = 15
NEWCOMERS_SHARE = 8  # bytes of a chunk per byte by which the ring ages when it is placed
COOLER_SPEED = 2  # bytes by which the ring ages per byte that the cooler moves
RETURN_HEAT = 4
RETURN_AGE = 5  # bytes by which the ring ages for each of what has come back
IDLE_RINGS = 2  # what was not hit while the ring aged by so many times its size goes
IDLE_AT_ONCE = 256


class Plan(NamedTuple):
    """A place that was found: evict `victims`, in this order, and `extent` is free.

    Attributes:
        idle: chunks elsewhere that go too, because nobody has asked for them.
        used: slots of idle chunks that are pinned: they count as hit.
        after: slot of the chunk behind which extent and victims begin; -1 at the ring's begin.
    """

    extent: Extent
    victims: tuple[Extent, ...]
    idle: tuple[Extent, ...] = ()
    used: tuple[int, ...] = ()
    after: int = -1

    @property
    def evicted(self) -> tuple[Extent, ...]:
        return self.victims + self.idle


class RingAllocator:
    """Books of a ring of `capacity` bytes and of slot ids `0 … num_slots - 1`."""

    def __init__(self, capacity: int, num_slots: int) -> None:
        self.capacity = capacity
        self.num_slots = num_slots
        self._edge = Chunk.edge(capacity)
        self._hand = 0
        self._last = self._edge  # before the hand
        self._cooler = 0
        self._cooled = self._edge  # before the cooler, and none between but what was placed since
        self._paid = (0, 1)  # what the last chunk cost: worth of its victims, root of its size
        self._age = 0  # bytes
        self._life_bytes = IDLE_RINGS * capacity
        self._long_wait_bytes = 3 * capacity // 4
        self._first_idle_at = 0  # age before which nothing goes for idleness; for speed, may be too early
        self._shielded_until = 0  # the same for the sake of a hit on what was idle for long
        self._used_bytes = 0
        self._slot_to_chunk: OrderedDict[int, Chunk] = OrderedDict()  # what was placed or hit latest is last
        self._freed_slots: list[int] = []
        self._next_slot = 0  # slots from here on were never taken

    def plan(self, size: int, is_pinned: Callable[[int], bool]) -> Plan | None:
        """Find room for `size` bytes; change nothing.

        Args:
            is_pinned: tells the slots that may not be evicted now; called at most once per slot, twice if it is idle.
        Returns:
            the place and its victims, or None if nothing fits or no slot id can be had.
        """
        row: list[Chunk] = []
        pins = Pins(row, lambda chunk: is_pinned(chunk.extent.slot))
        paid, root = self._paid
        bargain = paid * isqrt(size) // root
        found = choose(self._places(size, row), pins, bargain=bargain)
        if found is None:
            return None
        _, offset, first, last = found
        after = row[first - 1].extent.slot
        slot = self._freed_slots[-1] if self._freed_slots else self._next_slot
        if slot == self.num_slots:
            if first == last:  # bytes are free, slot ids are not
                single = choose(self._singles(row), pins, bargain=bargain)
                if single is None:
                    return None
                _, _, first, last = single
            slot = row[first].extent.slot
        victims = tuple([chunk.extent for chunk in row[first:last]])
        idle, used = self._idle(self._age + size // NEWCOMERS_SHARE, victims, is_pinned)
        return Plan(Extent(slot, offset, size), victims, idle, used, after)

    def apply(self, plan: Plan) -> None:
        """Evict the victims, take the place and move both hands. The plan must be fresh."""
        extent = plan.extent
        chunk = Chunk(extent)
        chunk.link(self._slot_to_chunk.get(plan.after, self._edge))
        is_victims_slot = not self._freed_slots and self._next_slot == self.num_slots
        if self._freed_slots:
            self._freed_slots.pop()
        elif not is_victims_slot:
            self._next_slot += 1
        worth = 0
        for victim in plan.victims:
            worth += self._remove(victim.slot).worth
        self._paid = worth, chunk.root
        for each in plan.idle:
            self._remove(each.slot)
        if is_victims_slot:
            self._freed_slots.remove(extent.slot)  # the first
        for slot in plan.used:
            self._use(self._slot_to_chunk[slot])
        self._hand, self._last = chunk.end, chunk
        self._grow_older(extent.size // NEWCOMERS_SHARE)
        self._slot_to_chunk[extent.slot] = chunk
        self._used_bytes += extent.size
        chunk.used_at = self._age

    def come_back(self, slot: int) -> None:
        """Count a chunk that was just placed as asked for before: its content was evicted a short time ago."""
        chunk = self._slot_to_chunk[slot]
        chunk.was_hit = True
        size = chunk.extent.size
        self._grow_older(RETURN_AGE * size - size // NEWCOMERS_SHARE)
        self._use(chunk)
        chunk.set_heat(RETURN_HEAT)

    def hit(self, slot: int) -> None:
        """Make a chunk young: it was asked for."""
        chunk = self._slot_to_chunk[slot]
        if self._age - chunk.used_at > self._long_wait_bytes:
            self._shielded_until = self._age + self._life_bytes
        if not chunk.was_hit:
            chunk.was_hit = True
            size = chunk.extent.size
            self._grow_older(size - size // NEWCOMERS_SHARE)
        self._use(chunk)
        chunk.set_heat(min(chunk.heat + HIT_HEAT, MAX_HEAT))

    def free(self, slot: int) -> None:
        """Give back the bytes and the id of one chunk; the hand goes back to its start if it was placed last."""
        chunk = self._remove(slot)
        if self._hand == chunk.end:
            self._hand = chunk.offset

    def place(self, extent: Extent, heat: int = NEW_HEAT) -> None:
        """Enter a chunk that lies in the ring already; `resume_at` must follow the last one.

        The cost grows with the number of chunks behind it: enter them in order of their offsets.

        Raises:
            InvariantError: no room is free there, the slot is not, or the heat cannot be; nothing has changed.
        """
        slot, offset, size = extent
        end = offset + size
        before = self._edge.last_before(end)
        if size <= 0 or offset < before.end or end > before.next.offset:
            raise InvariantError(f"{extent} has no room in a ring of {self.capacity} bytes behind {before.extent}")
        if not 0 <= slot < self.num_slots or slot in self._slot_to_chunk:
            raise InvariantError(f"the slot of {extent} is not one of {self.num_slots}, or taken")
        if not 0 <= heat <= MAX_HEAT:
            raise InvariantError(f"{extent} has heat {heat}, more than {MAX_HEAT} or less than 0")
        chunk = Chunk(extent, heat)
        chunk.link(before)
        self._slot_to_chunk[slot] = chunk
        self._used_bytes += size
        chunk.used_at = self._age

    def resume_at(self, offset: int) -> None:
        """Put the hand where the chunk that was placed last ends, and take all other slots for free."""
        before = self._edge.last_before(offset)
        if not before.end <= offset <= self.capacity:
            raise InvariantError(f"the hand, {offset}, is inside chunk {before.extent} or beyond {self.capacity}")
        self._hand, self._last = offset, before
        self._next_slot = max(self._slot_to_chunk, default=-1) + 1
        self._freed_slots = [slot for slot in range(self._next_slot) if slot not in self._slot_to_chunk]

    def extent(self, slot: int) -> Extent:
        return self._slot_to_chunk[slot].extent

    def has(self, slot: int) -> bool:
        return slot in self._slot_to_chunk

    def slots(self) -> list[int]:
        """Return the slots that have a chunk, in order of their offsets."""
        return [chunk.extent.slot for chunk in self._edge.others()]

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def check_integrity(self) -> None:
        """Raise InvariantError if an invariant of the module's head does not hold."""
        before = self._edge
        used_bytes = num_chunks = 0
        for chunk in self._edge.others():
            extent = chunk.extent
            if extent.offset < before.end or extent.size <= 0 or chunk.prev is not before:
                raise InvariantError(f"chunk {extent} begins before the end of {before.extent}, or is not linked to it")
            if extent.offset < self._hand < extent.end:
                raise InvariantError(f"the hand, {self._hand}, is inside chunk {extent}")
            if not 0 <= chunk.heat <= MAX_HEAT or chunk.worth != worth_of(chunk.heat, isqrt(extent.size)):
                raise InvariantError(f"chunk {extent} has heat {chunk.heat} and worth {chunk.worth}")
            if self._slot_to_chunk.get(extent.slot) is not chunk:
                raise InvariantError(f"slot {extent.slot} has another chunk than {extent}")
            used_bytes += extent.size
            num_chunks += 1
            before = chunk
        if before.end > self.capacity:
            raise InvariantError(f"a chunk ends at {before.end}, the ring at {self.capacity}")
        if num_chunks != len(self._slot_to_chunk) or self._edge.prev is not before:
            raise InvariantError("not all chunks are linked")
        if self._used_bytes != used_bytes:
            raise InvariantError(f"the chunks have {used_bytes} bytes, not {self._used_bytes}")
        uses = [chunk.used_at for chunk in self._slot_to_chunk.values()]
        if uses != sorted(uses):
            raise InvariantError("the chunks are not in order of their last uses")
        for each in {self._last, self._cooled} - {self._edge}:
            if self._slot_to_chunk.get(each.extent.slot) is not each:
                raise InvariantError(f"a hand is behind {each.extent}, which is gone")
        if self._last.end > self._hand or self._last.next.offset < self._hand:
            raise InvariantError(f"the hand, {self._hand}, is not behind {self._last.extent}")
        if sorted([*self._slot_to_chunk, *self._freed_slots]) != list(range(self._next_slot)):
            raise InvariantError("a slot id is both free and taken, or neither")
        if self._next_slot > self.num_slots:
            raise InvariantError(f"{self._next_slot} slots were taken, of {self.num_slots}")

    def _idle(
        self, now: int, victims: tuple[Extent, ...], is_pinned: Callable[[int], bool]
    ) -> tuple[tuple[Extent, ...], tuple[int, ...]]:
        """Return what goes because nobody has asked for it, and the slots of what stays because it is pinned."""
        if now < self._first_idle_at:
            return (), ()
        idle, used = list[Extent](), list[int]()
        self._first_idle_at = self._shielded_until
        if now >= self._shielded_until:
            gone = {victim.slot for victim in victims}
            for slot, chunk in self._slot_to_chunk.items():
                if now - chunk.used_at < self._life_bytes:
                    self._first_idle_at = chunk.used_at + self._life_bytes
                    break
                if len(idle) + len(used) == IDLE_AT_ONCE:
                    break  # the next plan goes on
                if is_pinned(slot):
                    used.append(slot)
                elif slot not in gone:
                    idle.append(chunk.extent)
        return tuple(idle), tuple(used)

    def _use(self, chunk: Chunk) -> None:
        chunk.used_at = self._age
        self._slot_to_chunk.move_to_end(chunk.extent.slot)

    def _places(self, size: int, row: list[Chunk]) -> Iterator[Place]:
        """Yield the places for `size` bytes in hand order, once around or until one has no victims.

        Args:
            row: gets the chunks that are passed: before those of a place stands the one behind which it begins.
        """
        for before, offset, stop in ((self._last, self._hand, self.capacity), (self._edge, 0, self._hand)):
            row.append(before)
            first = last = len(row)
            begin = end = before.next  # the place's first chunk, and the first behind it
            worth = 0
            start = offset
            while start < stop and start + size <= self.capacity:
                place_end = start + size
                while end.offset < place_end:
                    worth += end.worth
                    row.append(end)
                    last += 1
                    end = end.next
                yield worth, start, first, last
                if first == last:
                    return  # nothing costs less than no victims
                start = begin.end
                worth -= begin.worth
                first += 1
                begin = begin.next

    def _singles(self, row: list[Chunk]) -> Iterator[Place]:
        """Yield each chunk alone in hand order, once around: the places for a slot id without bytes."""
        chunk = self._last
        for _ in range(len(self._slot_to_chunk) + 1):
            chunk = chunk.next
            if chunk is not self._edge:
                row.append(chunk)
                yield chunk.worth, chunk.offset, len(row) - 1, len(row)

    def _grow_older(self, num_bytes: int) -> None:
        """Move the cooler and halve the heat of the chunks whose begin it passes."""
        before = self._age // COOLER_SPEED
        self._age += num_bytes
        begin = self._cooler
        end = begin + self._age // COOLER_SPEED - before
        chunk = self._cooled
        while chunk.next.offset < end:
            chunk = chunk.next
            if chunk is self._edge:
                begin, end = begin - self.capacity, end - self.capacity
            elif chunk.offset >= begin:
                chunk.set_heat(chunk.heat // 2)
        self._cooler, self._cooled = end, chunk

    def _remove(self, slot: int) -> Chunk:
        """Take a chunk out of all books, and return it."""
        chunk = self._slot_to_chunk.pop(slot)
        if chunk is self._last:
            self._last = chunk.prev
        if chunk is self._cooled:
            self._cooled = chunk.prev
        chunk.unlink()
        self._freed_slots.append(slot)
        self._used_bytes -= chunk.extent.size
        return chunk
