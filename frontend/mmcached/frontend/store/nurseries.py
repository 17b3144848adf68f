"""Allocates space in nurseries: which nursery gets memory, and which gives way.

A nursery is a file into which one client writes large records; the ranges of one are in `nursery_space`.

All nurseries share one memory budget. When a client puts a record, space for some records of that size is prepared for
it, and granted with the next answer; the space that is ready in all nurseries is at most a quarter of the budget. Cold
space is granted long before it is needed, because its client populates it first; while the client has no other space,
old records are removed for new ones only if they can be copied into the ring. If the budget is used up, the nursery
with the most memory per recently put byte gives way, or the one that needs space if it has half as much; nurseries of
disconnected clients come first. Within a nursery the oldest record is evicted first, except that a record whose key was
evicted recently goes first.

Bookkeeping only: no bytes, no sockets, no clock; time is counted in put bytes. Invariant: a client keeps granted space
until it puts a record there, or its connection is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from mmcached.frontend.store.nursery_space import DEPTH, NurserySpace, places_in
from mmcached.shm.ring.nursery_table import Placed
from mmcached.shm.segment.layout import ALIGNMENT, chunk_bytes
from mmcached.wire.errors import InvariantError, StaleHandle
from mmcached.wire.messages.parts import MIN_PLACED_BYTES, Grants

MAX_DEPTH = 16
"""Maximum number of places of a client's largest record size that are kept ready for it; doubled from `DEPTH` up to
this when it has found none."""
KEPT_RATIO = 2.0
"""Another nursery gives way only if it has this many times as much memory per put byte as the one that needs space."""
IDLE_TICKS = 2
"""A client is idle if it has put no record while this many times half of the budget was put."""


class NurseryAllocator:
    """All nurseries of one store.

    Args:
        budget_bytes: Memory for all nurseries together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._nurseries: OrderedDict[int, NurserySpace] = OrderedDict()
        self._peer_to_nursery: dict[bytes, NurserySpace] = {}
        self._unready: dict[int, NurserySpace] = {}
        self._tick = self._put_bytes = 0

    def __len__(self) -> int:
        return len(self._nurseries)

    def __iter__(self) -> Iterator[NurserySpace]:
        return iter(list(self._nurseries.values()))

    @property
    def held_bytes(self) -> int:
        return sum(one.held_bytes for one in self._nurseries.values())

    @property
    def max_record_bytes(self) -> int:
        """The maximum size of a record with its note: a larger one would leave too little space to others."""
        return self.budget_bytes // 4 // ALIGNMENT * ALIGNMENT

    def get(self, nursery: int) -> NurserySpace | None:
        return self._nurseries.get(nursery)

    def of(self, peer: bytes) -> NurserySpace | None:
        return self._peer_to_nursery.get(peer)

    @property
    def peers(self) -> list[bytes]:
        return list(self._peer_to_nursery)

    # ---- opening and draining

    def open(self, nursery: int, size: int, peer: bytes) -> None:
        one = self._nurseries[nursery] = self._peer_to_nursery[peer] = NurserySpace(nursery, size, peer)
        self.want(one, MIN_PLACED_BYTES)

    def adopt(self, nursery: int, size: int, records: Iterable[tuple[int, Placed]]) -> list[tuple[int, int]]:
        """Add a former frontend's nursery as drained; return its unused ranges, to be returned to the kernel.

        Args:
            records: Slots and places, the oldest first, including records that wait for their last readers.
        """
        one = self._nurseries[nursery] = NurserySpace(nursery, size, None)
        one.records.update(records)
        one.frontier = size
        return one.empty()

    def drain(self, one: NurserySpace) -> list[tuple[int, int]]:
        """Accept no further record in a nursery; return its unused ranges, to be returned to the kernel."""
        if one.peer is not None:
            del self._peer_to_nursery[one.peer]
            self._unready.pop(one.nursery, None)
            one.peer = None
        return one.empty()

    def remove(self, one: NurserySpace) -> None:
        """Forget a nursery without records."""
        if one.records:
            raise InvariantError(f"nursery {one.nursery} has {len(one.records)} records")
        if one.peer is not None:
            self.drain(one)
        del self._nurseries[one.nursery]

    # ---- puts

    def take(self, peer: bytes, nursery: int, offset: int, size: int) -> NurserySpace:
        """Take a place from its client, which has put a record there; `keep` or `give_back` must follow.

        Raises:
            StaleHandle: The place was not granted to this connection.
        """
        one = self._peer_to_nursery.get(peer)
        if one is None or one.nursery != nursery:
            raise StaleHandle(f"nursery {nursery} is not open for this connection")
        if offset % ALIGNMENT or not one.granted.covers(offset, offset + size):
            raise StaleHandle(f"bytes {offset} to {offset + size} of nursery {nursery} were not granted")
        one.granted.remove(offset, offset + size)
        self.want(one, size)
        return one

    def keep(self, one: NurserySpace, slot: int, place: Placed, *, goes_first: bool = False) -> None:
        """Add a record at a place that was taken.

        Args:
            goes_first: Whether it comes first in the eviction order.
        """
        one.records[slot] = place
        if goes_first:
            one.records.move_to_end(slot, last=False)
        one.demand += place.size
        self._advance(place.size)

    def _advance(self, size: int) -> None:
        """Advance the time by the bytes of a put record."""
        self._put_bytes += size
        if 2 * self._put_bytes >= self.budget_bytes:
            self._put_bytes = 0
            self._tick += 1
            for each in self._nurseries.values():
                each.demand //= 2
                each.peak = max(chunk_bytes(each.peak // 2), each.last_bytes)
                each.pace = max(DEPTH, each.pace // 2)

    def give_back(self, one: NurserySpace, place: Placed) -> None:
        """Return a place that was taken to its client: the record is not kept."""
        if one.peer is not None:
            one.prepared.add(place.offset, place.offset + place.size)

    def want(self, one: NurserySpace, size: int, *, found_none: bool = False) -> None:
        """Record the size of a put, and set how much space is to be ready for the next ones.

        Ready space is idle, so it is at most a quarter of the budget: half of that in equal parts, the other half by
        bytes that clients have put recently. A client with a larger record asks.

        Args:
            found_none: Whether no place was found for the record; one is then made ready.
        """
        size = chunk_bytes(size)
        one.peak = max(one.peak, size)
        one.used_at = self._tick
        self._unready[one.nursery] = one
        one.is_waiting = found_none and one.has_room(size)
        if found_none:
            one.pace = one.pace if one.is_waiting else min(MAX_DEPTH, 2 * one.pace)
        part = 2.0
        if len(self._peer_to_nursery) > 1:
            demand = sum(each.demand for each in self._peer_to_nursery.values())
            part = 1 / len(self._peer_to_nursery) + (one.demand + 1) / (demand + 1)
        limit = one.max_ready_bytes = int(self.budget_bytes / 8 * part)
        if found_none:
            one.largest = min(size, self.max_record_bytes)
            one.depth = max(1, min(one.pace, limit // one.largest))
        else:
            one.largest = min(one.peak, max(limit, MIN_PLACED_BYTES), self.max_record_bytes)
            one.depth = one.pace
            if limit - one.ready_bytes < one.pace * one.largest:
                num_ready = places_in(one.ready(), one.largest)
                one.depth = min(one.pace, num_ready + max(0, limit - one.ready_bytes) // one.largest)

    def came_inline(self, one: NurserySpace, size: int) -> None:
        """Record a put that travelled as frames because its client's nursery had no place for it."""
        self.want(one, size, found_none=True)
        self._advance(size)

    def freed(self, slot: int, place: Placed) -> tuple[int, int] | None:
        """Free the place of a removed record.

        Returns:
            The range to return to the kernel, if there is one.
        """
        one = self._nurseries.get(place.nursery)
        if one is None or one.records.pop(slot, None) is None:
            return None
        return one.freed(place)

    def grants(self, peer: bytes) -> Grants | None:
        one = self._peer_to_nursery.get(peer)
        return None if one is None else one.take_grants()

    # ---- free space

    @property
    def is_short(self) -> bool:
        """Whether a nursery may have too little ready space; see `needy`."""
        return bool(self._unready)

    def needy(self) -> list[NurserySpace]:
        """Prepare space for clients where there is some; return the nurseries for which records have to be removed."""
        for one in list(self._unready.values()):
            if self.prepare(one):
                del self._unready[one.nursery]
        return list(self._unready.values())

    def prepare(self, one: NurserySpace) -> bool:
        """Prepare free space, and space within the budget; return whether it is enough."""
        while not (is_enough := one.has_ready(one.depth)):
            spare = 0 if one.is_waiting else self.budget_bytes - self.held_bytes
            if not ((one.free and one.prepare_place(0)) or (spare and one.prepare_place(spare))):
                break
        one.prepare_ahead(self.budget_bytes - self.held_bytes)
        return is_enough

    def to_go(self, needy: NurserySpace | None) -> list[NurserySpace]:
        """Return nurseries in the order in which they give way.

        Drained ones come first, then those with the most memory per recently put byte.

        Memory that moves to another nursery costs page faults, so the needy one makes room itself unless another has
        `KEPT_RATIO` times as much for its puts.

        Args:
            needy: Nursery that needs space; None: slots are needed.
        """
        if needy is not None and (needy.is_waiting or self.budget_bytes - self.held_bytes >= needy.largest):
            return [needy]  # it lacks a contiguous range, not memory

        def order_of(one: NurserySpace) -> tuple[bool, float]:
            weight = KEPT_RATIO if one is needy else 1.0
            return one.peer is not None, -weight * one.held_bytes / (one.demand + 1)

        order = sorted(self._nurseries.values(), key=order_of)
        return [one for one in order if one.records or one.free or self.is_idle(one) or one is needy]

    def is_idle(self, one: NurserySpace) -> bool:
        """Return whether a client has put no record for a long time; see `IDLE_TICKS`."""
        return one.peer is not None and self._tick - one.used_at >= IDLE_TICKS
