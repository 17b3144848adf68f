"""Measures what a place in the ring costs with ever more chunks, and what an adoption; each against the smallest."""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from functools import partial
from statistics import median

import numpy as np

from mmcached.frontend.connections.rings import NoRing
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.ring_records import gc_paused
from mmcached.shm import RingWriter, adopt_ring, encode
from mmcached.shm.ring.allocator import RingAllocator
from mmcached.shm.segment.mapped import layout_of
from mmcached.wire.closeable import Closeable
from mmcached.wire.handle import RingAnnouncement
from scripts.bench.harness import Row, against_first, compare, cpu_ns, row
from scripts.studies.traces import MIB

NUM_CHUNKS = (1000, 16_000, 128_000, 1_000_000)
SMALL_BYTES = 192
"""What a small record takes, with its key."""


def places(num_rounds: int) -> list[Row]:
    rows = []
    for pinned_share in (0, 0.05):
        rings = {number: FullRing(number, pinned_share) for number in (1000, 4000, 16_000)}
        figures = compare({number: ring.place_us for number, ring in rings.items()}, num_rounds, num_unmeasured=0)
        rows += [
            row(
                "place",
                f"{number:,} chunks, {pinned_share:.0%} pinned",
                figures[number],
                "us",
                peer="1,000 chunks",
                peer_value=figures[1000],
            )
            for number in rings
        ]
    return rows


def sizes(num_rounds: int) -> list[Row]:
    """Cost of a put, a hit and a free for 1k–1M chunks, each against the smallest."""
    rows = []
    for scarce, slots_per_mib in (("bytes", 2.0), ("slot ids", 0.8)):
        rings = {number: FullRing(number, 0, slots_per_mib=slots_per_mib) for number in NUM_CHUNKS}
        samplers = {
            (name, number): sampler
            for number, ring in rings.items()
            for name, sampler in (("put", ring.place_us), ("hit", ring.hit_us), ("free", ring.free_us))
        }
        figures = compare(samplers, num_rounds, num_unmeasured=1)
        for name in ("put", "hit", "free"):
            by_number = {f"{number:,} chunks": figures[name, number] for number in NUM_CHUNKS}
            rows += against_first(f"{name}, {scarce} run out", "us", by_number)
    return rows


def adoptions(num_rounds: int) -> list[Row]:
    """CPU time until a successor has the books of a store of 1k–1M small records, for each record."""
    with ExitStack() as stack:
        stores = {number: stack.enter_context(LeftStore(number)) for number in NUM_CHUNKS}
        figures = compare({number: store.adopt_us for number, store in stores.items()}, num_rounds, num_unmeasured=1)
    return against_first("adoption, a record", "us", {f"{number:,} records": figures[number] for number in NUM_CHUNKS})


class LeftStore(Closeable):
    """The store of a frontend, of small records; its writer dies again and again."""

    def __init__(self, num_records: int) -> None:
        ring = RingWriter.create(
            data_bytes=SMALL_BYTES * num_records,
            num_slots=num_records,
            max_readers=2,
            max_object_bytes=SMALL_BYTES,
            has_index=True,
        )
        self._num_records = num_records
        self._store = RecordStore(first_epoch=1)
        self._store.adopt(ring)
        record = encode({"x": np.zeros(8, np.uint8)})
        for number in range(num_records):
            if refusal := self._store.put("tenant", str(number), record, epoch=1):
                raise RuntimeError(refusal)

    def adopt_us(self) -> float:
        """Let the writer die, and return the CPU time until its successor has its books, by record."""
        ring = self._store.ring
        if isinstance(ring, NoRing):
            raise TypeError("the store has no ring")
        ring.outlives_writer = True
        self._store.close()
        self._store = RecordStore(first_epoch=1)
        gc.collect()  # the former books, and those of others
        return cpu_ns(partial(self._adopt, ring.announcement)) / self._num_records / 1000

    def close(self) -> None:
        if isinstance(self._store.ring, RingWriter):
            self._store.ring.outlives_writer = False
        self._store.close()

    def _adopt(self, announcement: RingAnnouncement) -> None:
        with gc_paused():
            self._store.adopt(adopt_ring(announcement, layout_of(announcement), max_object_bytes=SMALL_BYTES))
        if len(self._store) != self._num_records:
            raise RuntimeError(f"{len(self._store)} of {self._num_records} records were adopted")


class FullRing:
    """A ring of about `num_chunks` chunks of 0.5 to 1.5 MiB; a share of them is pinned for good."""

    def __init__(self, num_chunks: int, pinned_share: float, *, slots_per_mib: float = 2) -> None:
        self._rng = np.random.default_rng(0)
        self._num_chunks = num_chunks
        self._allocator = RingAllocator(num_chunks * MIB, int(slots_per_mib * num_chunks))
        self._pinned: set[int] = set()
        self._place(num_chunks, hits_of_each=0)
        self._place(num_chunks)
        slots = self._allocator.slots()
        self._pinned.update(self._rng.choice(slots, int(pinned_share * len(slots)), replace=False).tolist())

    def place_us(self) -> float:
        """Return the median time of a plan and its apply; three hits come before each."""
        return median(self._place(1000)) / 1000

    def hit_us(self) -> float:
        """Return the CPU time of a hit of a random chunk."""
        allocator = self._allocator
        slots = list(filter(allocator.has, self._rng.integers(0, self._num_chunks, 3000).tolist()))
        started = time.thread_time_ns()
        for slot in slots:
            allocator.hit(slot)
        return (time.thread_time_ns() - started) / len(slots) / 1000

    def free_us(self) -> float:
        """Return the CPU time of a free of a random chunk; others take the room afterwards."""
        allocator = self._allocator
        slots = list(filter(allocator.has, self._rng.permutation(self._num_chunks)[:200].tolist()))
        started = time.thread_time_ns()
        for slot in slots:
            allocator.free(slot)
        taken = time.thread_time_ns() - started
        self._place(len(slots))
        return taken / len(slots) / 1000

    def _place(self, repeats: int, *, hits_of_each: int = 3) -> list[int]:
        allocator, times = self._allocator, []
        sizes = (self._rng.integers(MIB // 2, 3 * MIB // 2, repeats) // 64 * 64).tolist()
        hits = self._rng.integers(0, self._num_chunks, (repeats, hits_of_each)).tolist()
        for size, slots in zip(sizes, hits, strict=True):
            for slot in filter(allocator.has, slots):
                allocator.hit(slot)
            started = time.perf_counter_ns()
            plan = allocator.plan(size, self._pinned.__contains__)
            if plan is None:
                raise RuntimeError(f"no room for {size} bytes")
            allocator.apply(plan)
            times.append(time.perf_counter_ns() - started)
        return times
