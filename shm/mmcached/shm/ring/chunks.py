"""Keeps the state of each slot of a ring: claimed, current, or an island that waits for its last reader.

    free ──claim──> claimed ──publish──> current ──forget──> island ──> free     an island is leased: nobody finds it,
              └──abort──> free               └──evicted, or forgotten unleased──> free       and its bytes stay

Books only: the ring writes headers and payloads. Invariants: a slot is in one state; a (slot, generation) pair names
one content for the life of the ring; what is claimed, pinned or leased is never evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter

from mmcached.shm.ring.allocator import Extent, Plan, RingAllocator
from mmcached.shm.segment.layout import chunk_bytes
from mmcached.wire.errors import InvariantError, LocalProtocolError, StaleHandle
from mmcached.wire.handle import Handle


class ChunkTable:
    """All slots of one ring of `capacity` bytes.

    Args:
        is_leased: says of a slot that a living reader may still read its chunk.
        leased_slots: returns all those slots at once.
    """

    def __init__(
        self,
        capacity: int,
        num_slots: int,
        *,
        is_leased: Callable[[int], bool],
        leased_slots: Callable[[], Iterable[int]],
    ) -> None:
        self.capacity = capacity
        self.num_slots = num_slots
        self._allocator = RingAllocator(capacity, num_slots)
        self._is_leased = is_leased
        self._leased_slots = leased_slots
        self._generation = 0
        self._claimed: dict[int, int] = {}  # slot -> generation
        self._slot_to_handle: dict[int, Handle] = {}
        self._pins: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._slot_to_handle)

    def __iter__(self) -> Iterator[Handle]:
        """Iterate over the current chunks, as of now."""
        return iter(list(self._slot_to_handle.values()))

    @property
    def used_bytes(self) -> int:
        return self._allocator.used_bytes

    def adopt(
        self, current: Sequence[Handle], extents: Sequence[Extent], islands: Iterable[Extent], generation: int
    ) -> None:
        """Take over what a former writer has left, in a table without chunks.

        Args:
            current: the oldest first, and `extents` likewise.
            generation: the last that was used.
        Raises:
            InvariantError: two lie in the same place, or one outside of the ring.
        """
        for extent in sorted([*extents, *islands], key=itemgetter(1)):  # by offset
            self._allocator.place(extent)
        self._allocator.resume_at(extents[-1].end if extents else 0)
        self._slot_to_handle = {handle.slot: handle for handle in current}
        self._generation = generation

    # ---- claims

    def plan(self, nbytes: int) -> Plan | None:
        """Find room for a payload; change nothing. None: nothing fits beside what is kept."""
        return self._allocator.plan(chunk_bytes(nbytes), self.is_kept)

    def new_generation(self) -> int:
        """Return a number that no chunk has had."""
        self._generation += 1
        return self._generation

    def claim(self, plan: Plan) -> tuple[int, list[Handle]]:
        """Carry out a fresh plan; return the new generation, and the handles that it has evicted, in order."""
        evicted = []
        for victim in plan.victims:
            self._pins.pop(victim.slot, None)
            if (handle := self._slot_to_handle.pop(victim.slot, None)) is not None:
                evicted.append(handle)
        self._allocator.apply(plan)
        self._claimed[plan.extent.slot] = self.new_generation()
        return self._generation, evicted

    def check_claimed(self, slot: int, generation: int) -> None:
        """Raise LocalProtocolError if this claim is not open."""
        if self._claimed.get(slot) != generation:
            raise LocalProtocolError(f"claim of slot {slot}, generation {generation} is not open")

    def publish(self, handle: Handle, *, is_proven: bool = False) -> None:
        """Make a claimed chunk current; proven: not on probation, because its content was asked for before."""
        del self._claimed[handle.slot]
        self._slot_to_handle[handle.slot] = handle
        if is_proven:
            self._allocator.prove(handle.slot)

    def admits_return(self) -> bool:
        """Return whether content that comes back after its eviction is to be published as proven."""
        return self._allocator.admits_return()

    def abort(self, slot: int) -> None:
        del self._claimed[slot]
        self._allocator.free(slot)

    def close(self) -> None:
        """End all claims, and let go of the leases."""
        self._claimed.clear()
        self._is_leased, self._leased_slots = _nothing_leased, tuple

    # ---- what is current

    def is_current(self, handle: Handle) -> bool:
        return self._slot_to_handle.get(handle.slot) == handle

    def current(self, slot: int) -> Handle | None:
        """Return what is current in a slot."""
        return self._slot_to_handle.get(slot)

    def check_current(self, handle: Handle) -> None:
        """Raise StaleHandle if the handle names nothing that is here now."""
        if not self.is_current(handle):
            raise StaleHandle(f"slot {handle.slot} does not hold generation {handle.generation} any more")

    def extent(self, handle: Handle) -> Extent:
        """Return the place of a current chunk, header and padding included."""
        return self._allocator.extent(handle.slot)

    def touch(self, handle: Handle) -> None:
        self._allocator.hit(handle.slot)

    def pin(self, handle: Handle) -> None:
        self._pins[handle.slot] += 1

    def unpin(self, handle: Handle) -> None:
        """Take one pin off; raise LocalProtocolError if there is none."""
        if not self._pins[handle.slot]:
            raise LocalProtocolError(f"slot {handle.slot} is not pinned")
        self._pins[handle.slot] -= 1

    def forget(self, handle: Handle, *, is_leased: bool) -> None:
        """Make a current chunk an island if somebody has a lease, else free it."""
        del self._slot_to_handle[handle.slot]
        self._pins.pop(handle.slot, None)
        if not is_leased:
            self._allocator.free(handle.slot)

    # ---- looking

    def pinned_bytes(self) -> int:
        """Return the bytes that no claim can get now; cost grows with the chunks that are kept, not with the ring."""
        kept = {slot for slot, pins in self._pins.items() if pins}.union(self._leased_slots(), self._claimed)
        return sum(self._allocator.extent(slot).size for slot in kept if self._allocator.has(slot))

    def check_integrity(self) -> None:
        """Raise InvariantError if the books contradict each other."""
        self._allocator.check_integrity()
        slots = set(self._allocator.slots())
        if not self._slot_to_handle.keys() | self._claimed.keys() <= slots:
            raise InvariantError("a chunk or a claim has no room in the ring")
        if self._slot_to_handle.keys() & self._claimed.keys():
            raise InvariantError("a slot is both claimed and committed")
        if not {slot for slot, pins in self._pins.items() if pins} <= self._slot_to_handle.keys():
            raise InvariantError("a pin is on a slot without a chunk")
        for slot, handle in self._slot_to_handle.items():
            extent = self._allocator.extent(slot)
            if handle.slot != slot or extent.offset != handle.offset or extent.size < chunk_bytes(handle.nbytes):
                raise InvariantError(f"{handle} is said to lie in {extent}")

    def is_kept(self, slot: int) -> bool:
        """Return whether a slot is claimed, pinned or leased."""
        return slot in self._claimed or self._pins.get(slot, 0) > 0 or self._is_leased(slot)


def _nothing_leased(slot: int) -> bool:
    return False
