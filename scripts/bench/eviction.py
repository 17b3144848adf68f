"""Measures what the ring keeps, refuses, and spends on a place, beside other policies; on the real allocator.

hit rate   ring of 10 % of the working set, mean of 8 seeds, in percent of requests and of bytes; the points in `params`
           are the difference to the peer; the requests: `traces`. With `--trace FILE` only that file is replayed
refused    inserts that found no room, in percent, while a share of the chunks stays leased for half a turn of the ring
           on average, some for far longer. The peer, a strict FIFO ring, takes back in order: one leased chunk stops it
place      plan and apply with this many chunks in the ring, hits in between       peer: the same with 1,000 chunks
size       the same for a put, a hit and a free, from 1,000 to 1,000,000 chunks
adoption   a real ring of small records whose writer has died: until the books of its successor are made, by record

**The peers** are caches in plain words. All hold `capacity` bytes exactly, as nothing that has to be laid out can, and
every miss brings the object in.

    LRU        out goes what was not asked for the longest
    Fifo       out goes what came first, asked for or not; so does a ring without leases or hits
    Sieve      a hand goes from old to new over the order of arrival, spares once what was hit; nothing ever moves
    S3Fifo     a small queue on probation, a large one for what was hit there or came back soon after it left
    furthest   knows the future: out goes the most bytes × time until the next use. A greedy choice, so no proven bound,
               but what no policy that does not know the future comes near

Invariant: the sizes of what is held never exceed the capacity.

>>> cache = Sieve(3)
>>> [cache.request(key, 1) for key in "abcadb"]  # d pushes out b, since a was hit
[False, False, False, True, False, False]

Source: SIEVE, NSDI '24; S3-FIFO, SOSP '23.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mmcached.frontend.connections.rings import NoRing
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.store_service import no_collection
from mmcached.shm import RingWriter, adopt_ring, encode
from mmcached.shm.ring.allocator import RingAllocator
from mmcached.shm.segment.mapped import layout_of
from mmcached.wire.closeable import Closeable
from mmcached.wire.handle import RingAnnouncement
from scripts.bench import harness
from scripts.bench.harness import Row, Section, against_first, compare, cpu_ns, row
from scripts.bench.traces import MIB, Trace, draw_sizes, hot_scan_loop, prefix_blocks, zipf

NUM_SEEDS = 8
QUICK_SEEDS = 2
NUM_SLOTS = 1 << 15
NUM_INSERTS = 6000
REPLAYED_REQUESTS = 40_000
NUM_CHUNKS = (1000, 16_000, 128_000, 1_000_000)
SMALL_BYTES = 192
"""What a small record takes, with its key."""


class Policy(Protocol):
    def request(self, key: Hashable, size: int) -> bool:
        """Return whether the object of `size` bytes was there; it is now."""


class Lru:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._used = 0
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()

    def request(self, key: Hashable, size: int) -> bool:
        if key in self._sizes:
            self._touch(key)
            return True
        while self._used + size > self.capacity:
            self._used -= self._sizes.popitem(last=False)[1]
        self._sizes[key] = size
        self._used += size
        return False

    def _touch(self, key: Hashable) -> None:
        self._sizes.move_to_end(key)


class Fifo(Lru):
    def _touch(self, key: Hashable) -> None:
        pass


class Sieve:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._used = 0
        self._sizes: OrderedDict[Hashable, int] = OrderedDict()  # ahead of the hand, oldest first, then all behind it
        self._is_hit: dict[Hashable, bool] = {}
        self._behind: OrderedDict[Hashable, int] = OrderedDict()  # the hand has passed them in this round

    def request(self, key: Hashable, size: int) -> bool:
        if key in self._is_hit:
            self._is_hit[key] = True
            return True
        while self._used + size > self.capacity:
            self._evict_one()
        self._sizes[key] = size
        self._is_hit[key] = False
        self._used += size
        return False

    def _evict_one(self) -> None:
        while True:
            if not self._sizes:  # the hand is at the newest and begins again at the oldest
                self._sizes, self._behind = self._behind, self._sizes
            key, size = self._sizes.popitem(last=False)
            if not self._is_hit[key]:
                del self._is_hit[key]
                self._used -= size
                return
            self._is_hit[key] = False
            self._behind[key] = size


class S3Fifo:
    """A tenth of the bytes for the small queue; the ghosts stand for as many bytes as the large one has."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._small = _Queue()
        self._large = _Queue()
        self._ghosts = _Queue()
        self._hits: dict[Hashable, int] = {}

    def request(self, key: Hashable, size: int) -> bool:
        if key in self._hits:
            self._hits[key] = min(self._hits[key] + 1, 3)
            return True
        while self._small.used + self._large.used + size > self.capacity:
            self._evict_one()
        if key in self._ghosts.sizes:
            self._ghosts.remove(key)
            self._large.append(key, size)
        else:
            self._small.append(key, size)
        self._hits[key] = 0
        return False

    def _evict_one(self) -> None:
        if self._small.sizes and (self._small.used >= self.capacity // 10 or not self._large.sizes):
            key, size = self._small.pop()
            if not self._hits[key]:
                del self._hits[key]
                self._ghosts.append(key, size)
                while self._ghosts.used > self.capacity * 9 // 10:
                    self._ghosts.pop()
            else:
                self._hits[key] = 0
                self._large.append(key, size)
            return
        key, size = self._large.pop()
        if not self._hits[key]:
            del self._hits[key]
        else:
            self._hits[key] -= 1
            self._large.append(key, size)


class _Queue:
    def __init__(self) -> None:
        self.used = 0
        self.sizes: OrderedDict[Hashable, int] = OrderedDict()

    def append(self, key: Hashable, size: int) -> None:
        self.sizes[key] = size
        self.used += size

    def pop(self) -> tuple[Hashable, int]:
        key, size = self.sizes.popitem(last=False)
        self.used -= size
        return key, size

    def remove(self, key: Hashable) -> None:
        self.used -= self.sizes.pop(key)


def furthest(keys: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], capacity: int) -> npt.NDArray[np.bool_]:
    """Return which requests hit. A new object may be the one that goes at once.

    Args:
        keys: `(num_requests,)`, each an index into `sizes`.
        sizes: `(num_objects,)` bytes.
    """
    num_requests, never = len(keys), 1 << 40
    next_uses = np.full(num_requests, never)
    key_to_next: dict[int, int] = {}
    for index in range(num_requests - 1, -1, -1):
        next_uses[index] = key_to_next.get(int(keys[index]), never)
        key_to_next[int(keys[index])] = index
    hits = np.zeros(num_requests, np.bool_)
    key_to_use = np.zeros(len(sizes), np.int64)
    held_sizes = np.zeros(len(sizes), np.int64)  # 0: not held
    used = 0
    for now, key in enumerate(keys):
        hits[now] = held_sizes[key] > 0
        key_to_use[key] = next_uses[now]
        if not hits[now]:
            held_sizes[key] = sizes[key]
            used += int(sizes[key])
        while used > capacity:
            victim = np.argmax((key_to_use - now).astype(np.float64) * held_sizes)
            used -= int(held_sizes[victim])
            held_sizes[victim] = 0
    return hits


PEERS: dict[str, Callable[[int], Policy]] = {"LRU": Lru, "FIFO": Fifo, "SIEVE": Sieve, "S3-FIFO": S3Fifo}


class RingCache:
    """The allocator as a cache: a key is a chunk."""

    def __init__(self, capacity: int) -> None:
        self._allocator = RingAllocator(capacity, NUM_SLOTS)
        self._key_to_slot: dict[object, int] = {}
        self._slot_to_key: dict[int, object] = {}

    def request(self, key: object, size: int) -> bool:
        slot = self._key_to_slot.get(key)
        if slot is not None:
            self._allocator.hit(slot)
            return True
        plan = self._allocator.plan(size, lambda slot: False)
        if plan is None:
            return False
        for victim in plan.evicted:
            del self._key_to_slot[self._slot_to_key.pop(victim.slot)]
        self._allocator.apply(plan)
        self._key_to_slot[key] = plan.extent.slot
        self._slot_to_key[plan.extent.slot] = key
        return False


def zipf_rates(num_seeds: int) -> list[Row]:
    return hit_rates("Zipf 1.0", [zipf(seed) for seed in range(num_seeds)])


def mixed_rates(num_seeds: int) -> list[Row]:
    return hit_rates("hot + scan + loop", [hot_scan_loop(seed) for seed in range(num_seeds)])


def recorded_rates(path: Path, _: int) -> list[Row]:
    return hit_rates("recorded", [prefix_blocks(path, 0, num_requests=REPLAYED_REQUESTS)])


def hit_rates(name: str, traces: Sequence[Trace]) -> list[Row]:
    ours = mean_rates(traces, partial(replay, RingCache))
    rows = []
    for kind in (0, 1):
        for peer, policy in {**PEERS, "Belady": None}.items():
            theirs = mean_rates(traces, future if policy is None else partial(replay, policy))
            params = f"{name}, {ours[kind] - theirs[kind]:+.1f} points"
            title = ("hit rate, objects", "hit rate, bytes")[kind]
            rows.append(row(title, params, ours[kind], "%", peer=peer, peer_value=theirs[kind]))
    return rows


def mean_rates(traces: Sequence[Trace], run: Callable[[Trace], npt.NDArray[np.bool_]]) -> tuple[float, float]:
    """Return the mean hit rates of requests and of bytes in percent."""
    rates = []
    for trace in traces:
        hits, asked = run(trace), trace.sizes[trace.keys]
        rates.append((100 * hits.mean(), 100 * asked[hits].sum() / asked.sum()))
    objects, nbytes = np.mean(rates, axis=0)
    return float(objects), float(nbytes)


def replay(policy: Callable[[int], Policy], trace: Trace) -> npt.NDArray[np.bool_]:
    cache, sizes = policy(trace.ring_bytes), trace.sizes.tolist()
    return np.array([cache.request(key, sizes[key]) for key in trace.keys.tolist()])


def future(trace: Trace) -> npt.NDArray[np.bool_]:
    return furthest(trace.keys, trace.sizes, trace.ring_bytes)


def refusals(num_seeds: int) -> list[Row]:
    rows = []
    for share in (0.002, 0.02, 0.05):
        counts = [count_refused(share, seed) for seed in range(num_seeds)]
        ours, strict = np.mean(counts, axis=0) / NUM_INSERTS * 100
        params = f"{share:.1%} of chunks leased for long"
        rows.append(row("refused", params, float(ours), "%", peer="strict FIFO ring", peer_value=float(strict)))
    return rows


def count_refused(share: float, seed: int, capacity: int = 4096 * MIB) -> tuple[int, int]:
    """Return how many inserts we refuse, and how many a strict FIFO ring."""
    rng = np.random.default_rng(seed)
    sizes = draw_sizes(rng, NUM_INSERTS)
    long = rng.exponential(capacity / sizes.mean() / 2, NUM_INSERTS)
    ends = np.where(rng.random(NUM_INSERTS) < share, np.arange(NUM_INSERTS) + long, 0)
    allocator, slot_to_end = RingAllocator(capacity, NUM_SLOTS), dict[int, float]()
    fifo, fifo_used = deque[tuple[int, float]](), 0  # (size, end of its lease), oldest first
    refused = fifo_refused = 0
    for now, (size, end) in enumerate(zip(sizes.tolist(), ends.tolist(), strict=True)):
        leased = {slot for slot, its_end in slot_to_end.items() if its_end > now}
        plan = allocator.plan(size, leased.__contains__)
        if plan is None:
            refused += 1
        else:
            allocator.apply(plan)
            slot_to_end[plan.extent.slot] = end
        while fifo_used + size > capacity and fifo[0][1] <= now:
            fifo_used -= fifo.popleft()[0]
        if fifo_used + size > capacity:
            fifo_refused += 1
        else:
            fifo.append((size, end))
            fifo_used += size
    return refused, fifo_refused


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
        with no_collection():
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


SECTIONS: dict[str, Section] = {
    "zipf": zipf_rates,
    "mixed": mixed_rates,
    "refused": refusals,
    "place": places,
    "size": sizes,
    "adoption": adoptions,
}


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--trace", type=Path, metavar="FILE", help="replay this file of requests, and nothing else")
    path = options.parse_known_args()[0].trace
    sections = SECTIONS if path is None else {"recorded": partial(recorded_rates, path)}
    rounds = (NUM_SEEDS, QUICK_SEEDS)
    harness.main("what the ring keeps", sections, lambda undo: sections, rounds=rounds, options=options)


if __name__ == "__main__":
    main()
