"""Byte ranges of one nursery: which its client may write, which hold records, which are unused.

A nursery is a writer's segment: a shared-memory file into which one client writes large records.

    never used ──┐
    cold       ──┼──> prepared ──answer──> granted ──put──> record ──evicted, dropped──> free ──squeezed──> cold
    free       ──┘       ▲                            └── refused ──┐
                         └──────────────────────────────────────────┘

    a nursery is in use from its begin to its `frontier`; the bytes behind it were never used, and have no memory, like
    cold ones. In a drained nursery no range is prepared or granted, and all ranges without a record are cold.

Bookkeeping only: no bytes, no sockets, no clock. Invariant: the sets of a nursery do not overlap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from mmcached.shm.ring.extents import Extents
from mmcached.shm.ring.nursery_table import Placed
from mmcached.wire.messages.parts import MAX_GRANTS, MIN_PLACED_BYTES, Grants

DEPTH = 2
"""Number of places of a client's largest record size that are kept ready for it at first."""


class NurserySpace:
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
        if sum(places_in(extents, self.largest) for extents in usable) >= num_places:
            return True  # without joining ranges of two kinds, which takes most of the time
        return places_in(self.ready(), self.largest) >= num_places

    def ready(self) -> Extents:
        """Return the ranges that the client can use after the next answer."""
        if self.is_waiting:
            return self.prepared.copy()
        room = self.granted.copy()
        for begin, end in (*self.prepared, *self.prepared_cold):
            room.add(begin, end)
        return room

    @property
    def last_bytes(self) -> int:
        """Size of the newest record's place."""
        return next(reversed(self.records.values())).size if self.records else MIN_PLACED_BYTES

    # ---- from one set to another

    def empty(self) -> list[tuple[int, int]]:
        """Turn all ranges without a record cold; return them, to be returned to the kernel."""
        self.granted, self.prepared, self.prepared_cold, self.free = Extents(), Extents(), Extents(), Extents()
        self.cold = Extents([(0, self.frontier)])
        for place in self.records.values():
            self.cold.remove(place.offset, place.offset + place.size)
        return list(self.cold)

    def squeeze(self) -> list[tuple[int, int]]:
        """Turn the free ranges cold; return them, to be returned to the kernel."""
        freed = list(self.free)
        for begin, end in freed:
            self.free.remove(begin, end)
            self.cold.add(begin, end)
        return freed

    def freed(self, place: Placed) -> tuple[int, int] | None:
        """Free the place of a removed record; return the range to return to the kernel, if there is one."""
        begin, end = place.offset, place.offset + place.size
        if self.peer is not None:
            self.free.add(begin, end)
            return None
        self.cold.add(begin, end)
        return self.cold.around(begin)

    def take_grants(self) -> Grants | None:
        """Grant the prepared ranges, and return them; None if there are none."""
        if not (self.prepared or self.prepared_cold):
            return None
        of_kind = []
        for prepared in (self.prepared, self.prepared_cold):
            some = list(prepared)[:MAX_GRANTS]
            for begin, end in some:
                prepared.remove(begin, end)
                self.granted.add(begin, end)
            of_kind.append(some)
        return Grants(self.nursery, *of_kind)

    def prepare_place(self, spare: int) -> bool:
        """Prepare space for one more record of size `largest`; return False if there is none.

        Args:
            spare: Bytes of memory that the nursery may take beyond what it has.
        """
        available = self.free.copy()
        if spare:
            for begin, end in (*self.cold, (self.frontier, self.size)):
                available.add(begin, end)
        found = available.find(self.largest)
        if found is not None:
            return self._prepare([(found, found + self.largest)], spare)
        ready = self.ready()
        room = available.copy()
        for begin, end in ready:
            room.add(begin, end)
        for begin, end in room:  # beside what it has already
            parts = available.common(begin, end)
            has_one_more = (end - begin) // self.largest > places_in(ready.common(begin, end), self.largest)
            if parts and has_one_more and self._prepare(parts, spare):
                return True
        return False

    def prepare_ahead(self, spare: int) -> None:
        """Prepare cold space long before it is needed: as much as the nursery has in use, at most `spare` bytes."""
        if spare < self.largest:
            return
        ahead = self.ready_bytes
        wanted = min(spare, min(self.held_bytes - ahead, self.max_ready_bytes) - ahead)
        for begin, end in (*self.cold, (self.frontier, self.size)):
            size = min(wanted, end - begin) // self.largest * self.largest  # a smaller range would be of no use
            if size > 0:
                self._prepare([(begin, begin + size)], size)
                return

    def _prepare(self, stretches: Sequence[tuple[int, int]], spare: int) -> bool:
        """Prepare unused ranges; return False if more than `spare` bytes of them have no memory."""
        warm = [part for stretch in stretches for part in self.free.common(*stretch)]
        if places_in(stretches, 1) - places_in(warm, 1) > spare:
            return False
        for begin, end in stretches:
            self.cold.remove(begin, end)
            self.prepared_cold.add(begin, end)
            self.frontier = max(self.frontier, end)
        for begin, end in warm:
            self.free.remove(begin, end)
            self.prepared_cold.remove(begin, end)
            self.prepared.add(begin, end)
        return True


def places_in(room: Iterable[tuple[int, int]], size: int) -> int:
    """Return how many records of `size` bytes fit into the ranges."""
    return sum((end - begin) // size for begin, end in room)
