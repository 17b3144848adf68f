"""State of each slot of a ring: claimed, current, or an island (forgotten, but its bytes stay until its readers end).

    free ──claim──> claimed ──publish──> current ──forget──> island ──> free     an island is leased: it is not found,
              └──abort──> free               └──evicted, or forgotten unleased──> free       and its bytes stay

Pure bookkeeping: the ring writes headers and payloads. Invariants: a slot is in one state; a (slot, generation) pair
names one content for the life of the ring; claimed, pinned and leased chunks are never evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmcached.shm.ring.allocator import EvictionPlan, Extent, RingAllocator
from mmcached.shm.segment.layout import chunk_bytes
from mmcached.wire.errors import LocalProtocolError, StaleHandle
from mmcached.wire.handle import Handle


class RingClaim(NamedTuple):
    """Space for one payload that is not published yet.

    Attributes:
        offset: Of the payload in the data object, bytes.
        buffer: `(nbytes,)` uint8, writable, in the ring itself; do not use it after commit or abort.
        note: Bytes that are stored behind the payload.
    """

    slot: int
    generation: int
    offset: int
    nbytes: int
    buffer: npt.NDArray[np.uint8]
    note: bytes


class ChunkTable:
    """All slots of one ring of `capacity` bytes.

    Args:
        is_leased: Returns whether a living reader may still read a slot's chunk.
        leased_slots: Returns all such slots at once.
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
        """Iterate over a copy of the current chunks."""
        return iter(list(self._slot_to_handle.values()))

    @property
    def used_bytes(self) -> int:
        return self._allocator.used_bytes

    def adopt(
        self, current: Sequence[Handle], extents: Sequence[Extent], islands: Iterable[Extent], generation: int
    ) -> None:
        """Take over the chunks of a former writer, in a table without chunks.

        Args:
            current: The oldest first; `extents` in the same order.
            islands: Leased chunks that are no longer current.
            generation: The last that was used.

        Raises:
            InvariantError: Two overlap, or one lies outside the ring.
        """
        for extent in sorted([*extents, *islands], key=itemgetter(1)):  # by offset
            self._allocator.place(extent)
        self._allocator.resume_at(extents[-1].end if extents else 0)
        self._slot_to_handle = {handle.slot: handle for handle in current}
        self._generation = generation

    # ---- claims

    def plan(self, nbytes: int) -> EvictionPlan | None:
        """Find a place for a payload; change nothing. Return None if nothing fits beside the chunks that are kept."""
        return self._allocator.plan(chunk_bytes(nbytes), self.is_kept)

    def new_generation(self) -> int:
        """Return a number that no chunk has had."""
        self._generation += 1
        return self._generation

    def claim(self, plan: EvictionPlan) -> tuple[int, list[Handle]]:
        """Carry out a fresh plan; return the new generation, and the evicted handles in order."""
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
        """Make a claimed chunk current; a proven one skips probation, because its content was requested before."""
        del self._claimed[handle.slot]
        self._slot_to_handle[handle.slot] = handle
        if is_proven:
            self._allocator.prove(handle.slot)

    def admits_return(self) -> bool:
        """Return whether content that returns after its eviction is to be published as proven."""
        return self._allocator.admits_return()

    def abort(self, slot: int) -> None:
        del self._claimed[slot]
        self._allocator.free(slot)

    def close(self) -> None:
        """End all claims, and drop the references to the leases."""
        self._claimed.clear()
        self._is_leased, self._leased_slots = _nothing_leased, tuple

    # ---- current chunks

    def is_current(self, handle: Handle) -> bool:
        return self._slot_to_handle.get(handle.slot) == handle

    def current(self, slot: int) -> Handle | None:
        return self._slot_to_handle.get(slot)

    def check_current(self, handle: Handle) -> None:
        """Raise StaleHandle if the handle's chunk is not current."""
        if not self.is_current(handle):
            raise StaleHandle(f"slot {handle.slot} does not hold generation {handle.generation} any more")

    def extent(self, handle: Handle) -> Extent:
        """Return the place of a current chunk, including its note and padding."""
        return self._allocator.extent(handle.slot)

    def touch(self, handle: Handle) -> None:
        self._allocator.hit(handle.slot)

    def value(self, handle: Handle, worth: int) -> None:
        self._allocator.value(handle.slot, worth)

    def pin(self, handle: Handle) -> None:
        self._pins[handle.slot] += 1

    def unpin(self, handle: Handle) -> None:
        """Remove one pin; raise LocalProtocolError if the slot has none."""
        if not self._pins[handle.slot]:
            raise LocalProtocolError(f"slot {handle.slot} is not pinned")
        self._pins[handle.slot] -= 1

    def forget(self, handle: Handle, *, is_leased: bool) -> None:
        """Remove a current chunk: a leased one becomes an island, any other is freed."""
        del self._slot_to_handle[handle.slot]
        self._pins.pop(handle.slot, None)
        if not is_leased:
            self._allocator.free(handle.slot)

    # ---- looking

    def pinned_bytes(self) -> int:
        """Return the bytes that no claim can get now; the cost grows with the kept chunks, not with the ring."""
        kept = {slot for slot, pins in self._pins.items() if pins}.union(self._leased_slots(), self._claimed)
        return sum(self._allocator.extent(slot).size for slot in kept if self._allocator.has(slot))

    def is_kept(self, slot: int) -> bool:
        """Return whether a slot is claimed, pinned or leased."""
        return slot in self._claimed or self._pins.get(slot, 0) > 0 or self._is_leased(slot)


def _nothing_leased(slot: int) -> bool:
    return False
