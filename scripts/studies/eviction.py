"""Measures what a store keeps, refuses, and spends on a place, beside other policies; on the real allocator.

hit rate   store of 10 % of the working set, mean of 8 seeds, in percent of requests and of bytes; the points in
           `params` are the difference to the peer; the requests: `traces`. A store has a main ring and the nurseries
           of one writer, of four, or none. With `--trace FILE` only that file is replayed
equal      the same for five loads of objects of one size
sessions   the same for pictures of one size that are shown at four turns on average, a minute apart, half of them in
           one session alone: in a ring for a half, all, twice and four times as many sessions as are open at a time
clips      the same for records in use, in a store of so many GiB, to which clips come that nobody asks for again: see
           `eviction_clips`
one use    the same for these requests, with objects in between that are asked for once: so many for each of them
refused    inserts that found no room, in percent, while a share of the chunks stays leased for half a turn of the ring
           on average, some for far longer. The peer, a strict FIFO ring, takes back in order: one leased chunk stops it
place      plan and apply with this many chunks in the ring, hits in between       peer: the same with 1,000 chunks
size       the same for a put, a hit and a free, from 1,000 to 1,000,000 chunks
adoption   a real ring of small records whose writer has died: until the books of its successor are made, by record

The peers are `policies`; the last three sections, `eviction_costs`.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmcached.cli.traces.simulated_store import NUM_SLOTS, StoreCache
from mmcached.shm.ring.allocator import RingAllocator
from scripts.bench import harness
from scripts.bench.harness import Row, Section, row
from scripts.studies.eviction_clips import NUM_CLIPS, SLICE_BYTES, hit_rate
from scripts.studies.eviction_costs import adoptions, places, sizes
from scripts.studies.policies import PEERS, Policy, furthest
from scripts.studies.simulate_fleet.levels import RECORD_BYTES
from scripts.studies.simulate_fleet.requests import Load
from scripts.studies.simulate_fleet.requests import draw as draw_turns
from scripts.studies.traces import (
    MIB,
    Trace,
    draw_sizes,
    equal_sizes,
    hot_scan_loop,
    prefix_blocks,
    with_one_use,
    zipf,
)

STORES: dict[str, Callable[[int], StoreCache]] = {
    "1 writer": StoreCache,
    "4 writers": partial(StoreCache, num_writers=4),
    "no nurseries": partial(StoreCache, num_writers=0),
}
NUM_SEEDS = 8
QUICK_SEEDS = 2
NUM_INSERTS = 6000
REPLAYED_REQUESTS = 40_000
ONE_USE = (1, 4)
OPEN_SESSIONS = (0.5, 1, 2, 4)
STORES_GIB = (0.5, 1, 2, 4)
GIB = 1024 * MIB
NUM_TURNS = 12_000


def zipf_rates(num_seeds: int) -> list[Row]:
    return hit_rates("Zipf 1.0", [zipf(seed) for seed in range(num_seeds)])


def mixed_rates(num_seeds: int) -> list[Row]:
    return hit_rates("hot + scan + loop", [hot_scan_loop(seed) for seed in range(num_seeds)])


def one_use_rates(num_seeds: int) -> list[Row]:
    rows = []
    for name, draw in (("Zipf 1.0", zipf), ("hot + scan + loop", hot_scan_loop)):
        for num_others in ONE_USE:
            traces = [with_one_use(draw(seed), num_others, seed) for seed in range(num_seeds)]
            rows += hit_rates(f"{name}, {num_others} one-use for each", traces, ("LRU", "S3-FIFO"))
    return rows


def session_rates(num_seeds: int) -> list[Row]:
    rows = []
    for share in OPEN_SESSIONS:
        traces = [sessions(seed, share) for seed in range(num_seeds)]
        rows += hit_rates(f"sessions, a ring for {share:g} × the open ones", traces, ("LRU", "S3-FIFO"))
    return rows


def sessions(seed: int, share: float) -> Trace:
    """Draw the turns of one host's sessions, with a ring for a share of the pictures that are open at a time."""
    load = Load(hosts=1)
    pictures, keys = np.unique(draw_turns(load, NUM_TURNS, seed).keys, return_inverse=True)
    num_open = load.images_per_s / load.turns * (load.turns - 1) * load.think_s
    sizes = np.full(len(pictures), RECORD_BYTES)
    return Trace(keys.astype(np.int64), sizes, len(pictures), ring_share=share * num_open / len(pictures))


def clip_rates(num_seeds: int) -> list[Row]:
    rows = []
    for gib, num_slices, num, is_asked in product(STORES_GIB, SLICE_BYTES, NUM_CLIPS, (True, False)):
        slices = num * num_slices, SLICE_BYTES[num_slices]
        own = {
            name: float(
                np.mean([hit_rate(policy, int(gib * GIB), slices, is_asked, seed=seed) for seed in range(num_seeds)])
            )
            for name, policy in (("ours", StoreCache), ("LRU", PEERS["LRU"]), ("S3-FIFO", PEERS["S3-FIFO"]))
        }
        params = f"{gib:g} GiB, {num} of {num_slices} slices, asked for {'meanwhile' if is_asked else 'after'}"
        ours = own.pop("ours")
        rows += [row("hit rate beside clips", params, ours, "%", peer=peer, peer_value=own[peer]) for peer in own]
    return rows


def recorded_rates(path: Path, _: int) -> list[Row]:
    return hit_rates("recorded", [prefix_blocks(path, 0, num_requests=REPLAYED_REQUESTS)])


def equal_rates(num_seeds: int) -> list[Row]:
    drawn = [equal_sizes(seed) for seed in range(num_seeds)]
    return [each for name in drawn[0] for each in hit_rates(name, [of[name] for of in drawn], ("LRU", "S3-FIFO"))]


def hit_rates(name: str, traces: Sequence[Trace], peers: Sequence[str] = (*PEERS, "Belady")) -> list[Row]:
    ours = {store: mean_rates(traces, partial(replay, policy)) for store, policy in STORES.items()}
    rows = []
    for peer in peers:
        policy = PEERS.get(peer)
        run = future if policy is None else partial(replay, policy)
        theirs = mean_rates(traces, run)
        for store, rates in ours.items():
            for kind, title in enumerate(("hit rate, objects", "hit rate, bytes")):
                params = f"{name}, {store}, {rates[kind] - theirs[kind]:+.1f} points"
                rows.append(row(title, params, rates[kind], "%", peer=peer, peer_value=theirs[kind]))
    return rows


def mean_rates(traces: Sequence[Trace], run: Callable[[Trace], npt.NDArray[np.bool_]]) -> tuple[float, float]:
    """Return the mean hit rates of requests and of bytes in percent."""
    rates = []
    for trace in traces:
        hits = run(trace)[trace.is_counted]
        asked = trace.sizes[trace.keys[trace.is_counted]]
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


SECTIONS: dict[str, Section] = {
    "zipf": zipf_rates,
    "mixed": mixed_rates,
    "sessions": session_rates,
    "clips": clip_rates,
    "one use": one_use_rates,
    "equal": equal_rates,
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
