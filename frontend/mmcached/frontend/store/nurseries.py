"""Allocation within nurseries: the owner of each byte range, and the eviction order.

A nursery is a writer's segment: a shared-memory file into which one client writes large records.

    never used ──┐
    cold       ──┼──> prepared ──answer──> granted ──put──> record ──evicted, dropped──> free ──squeezed──> cold
    free       ──┘       ▲                            └── refused ──┐
                         └──────────────────────────────────────────┘

    a nursery is in use from its begin to its `frontier`; the bytes behind it were never used, and have no memory, like
    cold ones. In a drained nursery no range is prepared or granted, and all ranges without a record are cold.

All nurseries share one memory budget. When a client puts a record, space for some records of that size is prepared for
it, and granted with the next answer; the space that is ready in all nurseries is at most a quarter of the budget. Cold
space is granted long before it is needed, because its client populates it first; while the client has no other space,
old records are removed for new ones only if they can be copied into the ring. If the budget is used up, the nursery
with the most memory per recently put byte gives way, or the one that needs space if it has half as much; nurseries of
disconnected clients come first. Within a nursery the oldest record is evicted first, except that a record whose key was
evicted recently goes first.

Bookkeeping only: no bytes, no sockets, no clock; time is counted in put bytes. Invariants: the sets of a nursery do not
overlap; a client keeps granted space until it puts a record there, or its connection is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from mmcached.shm.ring.extents import Extents
from mmcached.shm.ring.nursery_table import Placed
from mmcached.shm.segment.layout import ALIGNMENT, chunk_bytes
from mmcached.wire.errors import InvariantError, StaleHandle
from mmcached.wire.messages.parts import MAX_GRANTS, MIN_PLACED_BYTES, Grants

DEPTH = 2
MAX_DEPTH = 16
"""Maximum number of places of a client's largest record size that are kept ready for it; doubled from `DEPTH` up to
this when it has found none."""
KEPT_RATIO = 2.0
"""Another nursery gives way only if it has this many times as much memory per put byte as the one that needs space."""
IDLE_TICKS = 2
"""A client is idle if it has put no record while this many times half of the budget was put."""


class Nursery:
    """Allocation state of one nursery; sizes and offsets in bytes.

    Attributes:
        peer: Connection whose client writes records here; None: drained.
        frontier: End of the used part.
        granted: Ranges that its client may write.
        prepared, prepared_cold: Ranges granted with the next answer, with memory and without.
        free: Unused ranges with memory.
        cold: Unused ranges without memory, before the frontier.
        records: Place of each record by slot, the oldest first; includes records that wait for their last reader.
        demand: Bytes put here recently.
        peak: Size of the largest recent record.
        pace: Number of places of size `largest` that should be ready, if space allowed.
        max_ready_bytes: Space that may be ready without a request of its client.
        largest: Size of a place that is kept ready.
        depth: Number of places of size `largest` that are kept ready.
        is_waiting: Whether its client has found no place although it was granted some, which it still populates.
    """

    __slots__ = (
        "cold", "demand", "depth", "free", "frontier", "granted", "is_waiting", "largest", "max_ready_bytes", "nursery",
        "pace", "peak", "peer",
        "prepared", "prepared_cold", "records", "size", "used_at",
    )  # fmt: skip

    def __init__(self, nursery: int, size: int, peer: bytes | None) -> None:
        self.nursery = nursery
        self.size = size
        self.peer = peer
        self.frontier = 0
        self.granted, self.prepared, self.prepared_cold = Extents(), Extents(), Extents()
        self.free, self.cold = Extents(), Extents()
        self.is_waiting = False
        self.records: OrderedDict[int, Placed] = OrderedDict()
        self.demand = 0
        self.peak = MIN_PLACED_BYTES
        self.pace = DEPTH
        self.max_ready_bytes = 0
        self.largest = MIN_PLACED_BYTES
        self.depth = DEPTH
        self.used_at = 0

    @property
    def held_bytes(self) -> int:
        """The memory that it takes, or may take, in bytes."""
        return self.frontier - self.cold.num_bytes

    @property
    def ready_bytes(self) -> int:
        """The space of the client after the next answer, in bytes."""
        return self.granted.num_bytes + self.prepared.num_bytes + self.prepared_cold.num_bytes

    def has_room(self, size: int) -> bool:
        """Return whether its client was granted a range of `size` bytes, which it may be populating."""
        return any(end - begin >= size for begin, end in self.granted)

    def has_ready(self, num_places: int) -> bool:
        """Return whether the client can put `num_places` records of size `largest` after the next answer."""
        usable = (self.prepared,) if self.is_waiting else (self.granted, self.prepared, self.prepared_cold)
        if sum(_num_places(extents, self.largest) for extents in usable) >= num_places:
            return True  # without joining ranges of two kinds, which takes most of the time
        return _num_places(self.ready(), self.largest) >= num_places

    def ready(self) -> Extents:
        """Return the ranges that the client can use after the next answer."""
        if self.is_waiting:
            return self.prepared.copy()
        room = self.granted.copy()
        for begin, end in (*self.prepared, *self.prepared_cold):
            room.add(begin, end)
        return room


class Nurseries:
    """All nurseries of one store.

    Args:
        budget_bytes: Memory for all nurseries together.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._nurseries: OrderedDict[int, Nursery] = OrderedDict()
        self._peer_to_nursery: dict[bytes, Nursery] = {}
        self._unready: dict[int, Nursery] = {}
        self._tick = self._put_bytes = 0

    def __len__(self) -> int:
        return len(self._nurseries)

    def __iter__(self) -> Iterator[Nursery]:
        return iter(list(self._nurseries.values()))

    @property
    def held_bytes(self) -> int:
        return sum(one.held_bytes for one in self._nurseries.values())

    @property
    def max_record_bytes(self) -> int:
        """The maximum size of a record with its note: a larger one would leave too little space to others."""
        return self.budget_bytes // 4 // ALIGNMENT * ALIGNMENT

    def get(self, nursery: int) -> Nursery | None:
        return self._nurseries.get(nursery)

    def of(self, peer: bytes) -> Nursery | None:
        return self._peer_to_nursery.get(peer)

    @property
    def peers(self) -> list[bytes]:
        return list(self._peer_to_nursery)

    # ---- opening and draining

    def open(self, nursery: int, size: int, peer: bytes) -> None:
        one = self._nurseries[nursery] = self._peer_to_nursery[peer] = Nursery(nursery, size, peer)
        self.want(one, MIN_PLACED_BYTES)

    def adopt(self, nursery: int, size: int, records: Iterable[tuple[int, Placed]]) -> list[tuple[int, int]]:
        """Add a former frontend's nursery as drained; return its unused ranges, to be returned to the kernel.

        Args:
            records: Slots and places, the oldest first, including records that wait for their last readers.
        """
        one = self._nurseries[nursery] = Nursery(nursery, size, None)
        one.records.update(records)
        one.frontier = size
        return self._empty(one)

    def drain(self, one: Nursery) -> list[tuple[int, int]]:
        """Accept no further record in a nursery; return its unused ranges, to be returned to the kernel."""
        if one.peer is not None:
            del self._peer_to_nursery[one.peer]
            self._unready.pop(one.nursery, None)
            one.peer = None
        return self._empty(one)

    def remove(self, one: Nursery) -> None:
        """Forget a nursery without records."""
        if one.records:
            raise InvariantError(f"nursery {one.nursery} has {len(one.records)} records")
        if one.peer is not None:
            self.drain(one)
        del self._nurseries[one.nursery]

    # ---- puts

    def take(self, peer: bytes, nursery: int, offset: int, size: int) -> Nursery:
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

    def keep(self, one: Nursery, slot: int, place: Placed, *, goes_first: bool = False) -> None:
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
                each.peak = max(chunk_bytes(each.peak // 2), size_of_last(each))
                each.pace = max(DEPTH, each.pace // 2)

    def give_back(self, one: Nursery, place: Placed) -> None:
        """Return a place that was taken to its client: the record is not kept."""
        if one.peer is not None:
            one.prepared.add(place.offset, place.offset + place.size)

    def want(self, one: Nursery, size: int, *, found_none: bool = False) -> None:
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
                num_ready = _num_places(one.ready(), one.largest)
                one.depth = min(one.pace, num_ready + max(0, limit - one.ready_bytes) // one.largest)

    def came_inline(self, one: Nursery, size: int) -> None:
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
        begin, end = place.offset, place.offset + place.size
        if one.peer is not None:
            one.free.add(begin, end)
            return None
        one.cold.add(begin, end)
        return one.cold.around(begin)

    def grants(self, peer: bytes) -> Grants | None:
        one = self._peer_to_nursery.get(peer)
        if one is None or not (one.prepared or one.prepared_cold):
            return None
        of_kind = []
        for prepared in (one.prepared, one.prepared_cold):
            some = list(prepared)[:MAX_GRANTS]
            for begin, end in some:
                prepared.remove(begin, end)
                one.granted.add(begin, end)
            of_kind.append(some)
        return Grants(one.nursery, *of_kind)

    # ---- free space

    @property
    def is_short(self) -> bool:
        """Whether a nursery may have too little ready space; see `needy`."""
        return bool(self._unready)

    def needy(self) -> list[Nursery]:
        """Prepare space for clients where there is some; return the nurseries for which records have to be removed."""
        for one in list(self._unready.values()):
            if self.prepare(one):
                del self._unready[one.nursery]
        return list(self._unready.values())

    def prepare(self, one: Nursery) -> bool:
        """Prepare free space, and space within the budget; return whether it is enough."""
        while not (is_enough := one.has_ready(one.depth)):
            spare = 0 if one.is_waiting else self.budget_bytes - self.held_bytes
            if not ((one.free and self._take_stretch(one, 0)) or (spare and self._take_stretch(one, spare))):
                break
        self._go_ahead(one)
        return is_enough

    def to_go(self, needy: Nursery | None) -> list[Nursery]:
        """Return nurseries in the order in which they give way.

        Drained ones come first, then those with the most memory per recently put byte.

        Memory that moves to another nursery costs page faults, so the needy one makes room itself unless another has
        `KEPT_RATIO` times as much for its puts.

        Args:
            needy: Nursery that needs space; None: slots are needed.
        """
        if needy is not None and (needy.is_waiting or self.budget_bytes - self.held_bytes >= needy.largest):
            return [needy]  # it lacks a contiguous range, not memory

        def order_of(one: Nursery) -> tuple[bool, float]:
            weight = KEPT_RATIO if one is needy else 1.0
            return one.peer is not None, -weight * one.held_bytes / (one.demand + 1)

        order = sorted(self._nurseries.values(), key=order_of)
        return [one for one in order if one.records or one.free or self.is_idle(one) or one is needy]

    def is_idle(self, one: Nursery) -> bool:
        """Return whether a client has put no record for a long time; see `IDLE_TICKS`."""
        return one.peer is not None and self._tick - one.used_at >= IDLE_TICKS

    def squeeze(self, one: Nursery) -> list[tuple[int, int]]:
        """Turn the free ranges of a nursery cold; return them, to be returned to the kernel."""
        freed = list(one.free)
        for begin, end in freed:
            one.free.remove(begin, end)
            one.cold.add(begin, end)
        return freed

    # ---- integrity and internals

    def _empty(self, one: Nursery) -> list[tuple[int, int]]:
        one.granted, one.prepared, one.prepared_cold, one.free = Extents(), Extents(), Extents(), Extents()
        one.cold = Extents([(0, one.frontier)])
        for place in one.records.values():
            one.cold.remove(place.offset, place.offset + place.size)
        return list(one.cold)

    def _take_stretch(self, one: Nursery, spare: int) -> bool:
        """Prepare room for one record more, with up to `spare` bytes of memory that the nursery does not have yet."""
        available = one.free.copy()
        if spare:
            for begin, end in (*one.cold, (one.frontier, one.size)):
                available.add(begin, end)
        found = available.find(one.largest)
        if found is not None:
            return self._prepare(one, [(found, found + one.largest)], spare)
        ready = one.ready()
        room = available.copy()
        for begin, end in ready:
            room.add(begin, end)
        for begin, end in room:  # beside what it has already
            parts = available.common(begin, end)
            has_one_more = (end - begin) // one.largest > _num_places(ready.common(begin, end), one.largest)
            if parts and has_one_more and self._prepare(one, parts, spare):
                return True
        return False

    def _prepare(self, one: Nursery, stretches: Sequence[tuple[int, int]], spare: int) -> bool:
        """Prepare unused ranges; return False if more than `spare` bytes of them have no memory."""
        warm = [part for stretch in stretches for part in one.free.common(*stretch)]
        if _num_places(stretches, 1) - _num_places(warm, 1) > spare:
            return False
        for begin, end in stretches:
            one.cold.remove(begin, end)
            one.prepared_cold.add(begin, end)
            one.frontier = max(one.frontier, end)
        for begin, end in warm:
            one.free.remove(begin, end)
            one.prepared_cold.remove(begin, end)
            one.prepared.add(begin, end)
        return True

    def _go_ahead(self, one: Nursery) -> None:
        """Prepare cold room long before it is needed, while the budget lasts: as much as the nursery has in use."""
        wanted = self.budget_bytes - self.held_bytes
        if wanted < one.largest:
            return
        ahead = one.ready_bytes
        wanted = min(wanted, min(one.held_bytes - ahead, one.max_ready_bytes) - ahead)
        for begin, end in (*one.cold, (one.frontier, one.size)):
            size = min(wanted, end - begin) // one.largest * one.largest  # no bits of room, which are of no use
            if size > 0:
                self._prepare(one, [(begin, begin + size)], size)
                return


def _num_places(room: Iterable[tuple[int, int]], size: int) -> int:
    """Return how many records of `size` bytes fit into the ranges."""
    return sum((end - begin) // size for begin, end in room)


def size_of_last(one: Nursery) -> int:
    return next(reversed(one.records.values())).size if one.records else MIN_PLACED_BYTES
