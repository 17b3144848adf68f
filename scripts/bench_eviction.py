"""What the ring keeps, what it refuses, and what a place costs, beside other policies; played on the real allocator.

hit rate   ring of 10 % of the working set, mean of 8 seeds, in percent of requests and of bytes; the points in `params`
           are the difference to the peer. The peers hold their capacity exactly, without fragments: `eviction_peers`;
           the requests: `eviction_traces`. With `--trace FILE` only that file is replayed
refused    inserts that found no room, in percent, while a share of the chunks stays leased for half a turn of the ring
           on average, some for far longer. The peer, a strict FIFO ring, takes back in order: one leased chunk stops it
place      plan and apply with this many chunks in the ring, hits in between       peer: the same with 1,000 chunks
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmark import Row, print_rows, row
from eviction_peers import Fifo, Lru, Policy, S3Fifo, Sieve, furthest
from eviction_traces import MIB, Trace, draw_sizes, hot_scan_loop, prefix_blocks, zipf
from mmcached.shm.ring.allocator import RingAllocator

SEEDS = range(8)
NUM_SLOTS = 1 << 15
NUM_INSERTS = 6000
PEERS: dict[str, Callable[[int], Policy]] = {"LRU": Lru, "FIFO": Fifo, "SIEVE": Sieve, "S3-FIFO": S3Fifo}
REPLAYED_REQUESTS = 40_000


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


def measure(trace_path: Path | None) -> list[Row]:
    if trace_path is not None:
        replay = partial(prefix_blocks, trace_path, num_requests=REPLAYED_REQUESTS)
        return hit_rates("recorded", [replay(0)])
    rows = hit_rates("Zipf 1.0", [zipf(seed) for seed in SEEDS])
    rows += hit_rates("hot + scan + loop", [hot_scan_loop(seed) for seed in SEEDS])
    rows += [refusals(share) for share in (0.002, 0.02, 0.05)]
    for pinned_share in (0, 0.05):
        rows += growth(pinned_share)
    return rows


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


def refusals(share: float) -> Row:
    ours, strict = np.mean([count_refused(share, seed) for seed in SEEDS], axis=0) / NUM_INSERTS * 100
    params = f"{share:.1%} of chunks leased for long"
    return row("refused", params, float(ours), "%", peer="strict FIFO ring", peer_value=float(strict))


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


def growth(pinned_share: float) -> list[Row]:
    rings = {num_chunks: FullRing(num_chunks, pinned_share) for num_chunks in (1000, 4000, 16_000)}
    times: dict[int, list[float]] = {num_chunks: [] for num_chunks in rings}
    for _ in range(5):
        for num_chunks, ring in rings.items():
            times[num_chunks].append(ring.place_us())
    params, base = f"{pinned_share:.0%} pinned", median(times[1000])
    return [
        row("place", f"{num_chunks:,} chunks, {params}", median(us), "us", peer="1,000 chunks", peer_value=base)
        for num_chunks, us in times.items()
    ]


class FullRing:
    """A ring of about `num_chunks` chunks of 0.5 to 1.5 MiB; a share of them is pinned for good."""

    def __init__(self, num_chunks: int, pinned_share: float) -> None:
        self._rng = np.random.default_rng(0)
        self._num_chunks = num_chunks
        self._allocator = RingAllocator(num_chunks * MIB, 2 * num_chunks)
        self._pinned: set[int] = set()
        for _ in range(2):
            self._place(num_chunks)
        slots = self._allocator.slots()
        self._pinned.update(self._rng.choice(slots, int(pinned_share * len(slots)), replace=False).tolist())

    def place_us(self) -> float:
        """Return the median time of a plan and its apply; three hits come before each."""
        return median(self._place(1000)) / 1000

    def _place(self, repeats: int) -> list[int]:
        allocator, times = self._allocator, []
        sizes = (self._rng.integers(MIB // 2, 3 * MIB // 2, repeats) // 64 * 64).tolist()
        hits = self._rng.integers(0, self._num_chunks, (repeats, 3)).tolist()
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


def main() -> None:
    title = "what the ring keeps"
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of a table")
    parser.add_argument("--trace", type=Path, help="replay this file of requests, and nothing else")
    arguments = parser.parse_args()
    print_rows(title, measure(arguments.trace), as_json=arguments.json)


if __name__ == "__main__":
    main()
