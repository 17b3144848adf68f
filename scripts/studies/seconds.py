"""Compares what policies save in seconds: `python -m scripts.studies.seconds TRACE [--share 0.05 0.2]`.

For a store of each share of the trace's bytes, in percent of the uses, of their bytes, and of their seconds:

    LRU, SIEVE, S3-FIFO    know sizes only
    store, costs unknown   the product's rules, by puts that do not say what they cost
    store                  the same with `cost_s`
    GDSF                   exact, by hits × seconds ÷ bytes, aged; searches all records
    Belady, bytes          knows the future: out goes the most bytes × time until the next use
    Belady, seconds        knows the future: out goes the most bytes × time until the next use ÷ seconds

`--costs equal` gives all items the same cost, `--costs bytes` one in proportion to the size.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmcached.cli.traces.readers import read_uses
from mmcached.cli.traces.simulation import play, point
from mmcached.cli.traces.use_trace import UseTrace
from scripts.studies.policies import PEERS, furthest

EQUAL_COST_S = 0.1
S_PER_BYTE = 6e-9
GIB = 1 << 30


class Gdsf:
    """Greedy-Dual-Size-Frequency. Source: Cherkasova, HPL-98-69R1."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._used = 0
        self._age = 0.0
        self._held: dict[Hashable, tuple[float, int, int]] = {}  # priority, uses, bytes
        self._heap: list[tuple[float, int, Hashable]] = []
        self._number = 0

    def request(self, key: Hashable, size: int, cost_s: float) -> bool:
        held = self._held.get(key)
        if held is None:
            while self._used + size > self._capacity and self._heap:
                priority, _, victim = heapq.heappop(self._heap)
                if victim in self._held and self._held[victim][0] == priority:
                    self._age = priority
                    self._used -= self._held.pop(victim)[2]
            if size > self._capacity:
                return False
            self._used += size
        num_uses = 1 if held is None else held[1] + 1
        priority = self._age + num_uses * cost_s / size
        self._held[key] = priority, num_uses, size
        self._number += 1
        heapq.heappush(self._heap, (priority, self._number, key))
        return held is not None


def found_by(trace: UseTrace, store_bytes: int) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which uses each policy finds, by name."""
    sizes, costs, keys = trace.sizes.tolist(), trace.costs_s.tolist(), trace.keys.tolist()
    found = {}
    for name in ("LRU", "SIEVE", "S3-FIFO"):
        peer = PEERS[name](store_bytes)
        found[name] = np.array([peer.request(key, sizes[key]) for key in keys])
    found["store, costs unknown"] = play(replace(trace, costs_s=np.zeros(len(sizes))), store_bytes)
    found["store"] = play(trace, store_bytes)
    gdsf = Gdsf(store_bytes)
    found["GDSF"] = np.array([gdsf.request(key, sizes[key], costs[key]) for key in keys])
    found["Belady, bytes"] = furthest(trace.keys, trace.sizes, store_bytes)
    weights = (trace.sizes / np.maximum(trace.costs_s, 1e-9)).astype(np.float64)
    found["Belady, seconds"] = furthest(trace.keys, trace.sizes, store_bytes, weights)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--share", type=float, nargs="+", default=[0.05, 0.2], help="of the trace's bytes")
    parser.add_argument("--costs", choices=["recorded", "equal", "bytes"], default="recorded")
    parser.add_argument("--uses", type=int, default=20_000, help="the first of the trace")
    given = parser.parse_args()
    trace = read_uses(given.trace)
    trace = replace(trace, keys=trace.keys[: given.uses])
    if given.costs == "equal":
        trace = replace(trace, costs_s=np.full(len(trace.sizes), EQUAL_COST_S))
    elif given.costs == "bytes":
        trace = replace(trace, costs_s=trace.sizes.astype(np.float64) * S_PER_BYTE)
    total = int(trace.sizes[np.unique(trace.keys)].sum())
    for share in given.share:
        store_bytes = int(share * total)
        sys.stdout.write(f"{share:g} of the bytes, {store_bytes / GIB:.1f} GiB: uses, bytes, seconds in %\n")
        for name, is_found in found_by(trace, store_bytes).items():
            of = point(trace, store_bytes, is_found)
            figures = "".join(f"{100 * figure:8.1f}" for figure in (of.found, of.found_bytes, of.saved))
            sys.stdout.write(f"  {name:24}{figures}\n")


if __name__ == "__main__":
    main()
