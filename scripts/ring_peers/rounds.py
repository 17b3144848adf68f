"""Interleaved rounds: every transport of a comparison in turn, a few puts or hits each, then the next round.

A figure is the median over rounds of the round's median. Every tensor carries a stamp in its first and last element,
which each reader reads back.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch

from ring_peers.pool import ReaderPool
from ring_peers.transport import Shape, Unavailable, WriterEnd

MIB = 1 << 20
_STAMPS = 1 << 20  # float32 holds these exactly
HITS_AMONG = 8

Opener = Callable[[ReaderPool, Shape], WriterEnd]


def make_items(item_bytes: int) -> list[torch.Tensor]:
    """Return source tensors, together larger than the processor's caches if the items are not small."""
    count = max(2, min(16, 80 * MIB // item_bytes))
    return [torch.rand(item_bytes // 4) for _ in range(count)]


class Driver:
    """One transport of a comparison: puts items under new keys, remembers their stamps, takes times."""

    def __init__(self, pool: ReaderPool, end: WriterEnd, shape: Shape) -> None:
        self.end = end
        self._pool = pool
        self._shape = shape
        self._items = itertools.cycle(make_items(shape.item_bytes))
        self._keys = itertools.count()
        # Only the latest are hit again: most rings evict them last.
        self.recent: deque[tuple[int, float]] = deque(maxlen=max(1, min(HITS_AMONG, shape.lap // 2 - 1)))

    def warm_up(self) -> None:
        """Put one lap."""
        self.puts(self._shape.lap)

    def puts(self, num_samples: int) -> list[float]:
        """Put new items, one after the other; return the times from call to the last reader's tensor, in us."""
        self.end.begin(num_samples)
        return [self._put_one() for _ in range(num_samples)]

    def hits(self, num_samples: int) -> list[float]:
        """As `puts`, for items that are there already."""
        self.end.begin(num_samples)
        return [self._hit_one() for _ in range(num_samples)]

    def items_per_s(self, num_samples: int, window: int) -> float:
        """Put items with up to `window` of them not yet read by all; return the rate from first call to last tensor."""
        pool, num_readers = self._pool, self._shape.num_readers
        self.end.begin(num_samples)
        started = time.monotonic_ns()
        num_ready = latest = 0
        for index in range(num_samples):
            while index - num_ready // num_readers >= window:
                latest = max(latest, pool.next_ready()[1])
                num_ready += 1
            self.end.put(next(self._keys), next(self._items))
        while num_ready < num_samples * num_readers:
            latest = max(latest, pool.next_ready()[1])
            num_ready += 1
        return num_samples / (latest - started) * 1e9

    def _put_one(self) -> float:
        key = next(self._keys)
        item = next(self._items)
        stamp = float(key % _STAMPS)
        item[0] = item[-1] = stamp
        started = time.monotonic_ns()
        self.end.put(key, item)
        ready = self._pool.all_ready(self._shape.num_readers, stamp)
        self.recent.append((key, stamp))
        return (ready - started) / 1000

    def _hit_one(self) -> float:
        key, stamp = self.recent[0]
        while not self.end.holds(key):
            self.recent.popleft()
            key, stamp = self.recent[0]
        self.recent.rotate(-1)
        started = time.monotonic_ns()
        self.end.hit(key)
        return (self._pool.all_ready(self._shape.num_readers, stamp) - started) / 1000


@contextlib.contextmanager
def drivers(pool: ReaderPool, shape: Shape, openers: Sequence[Opener]) -> Iterator[list[Driver]]:
    """Open those transports that are installed; say once which are not; close them afterwards."""
    with contextlib.ExitStack() as undo:
        opened = []
        for opener in openers:
            try:
                end = opener(pool, shape)
            except Unavailable as error:
                tell_once(f"left out: {error}")
                continue
            undo.callback(end.close)
            opened.append(Driver(pool, end, shape))
        yield opened


@cache
def tell_once(text: str) -> None:
    """Print a line to the error stream, unless it was printed before."""
    print(text, file=sys.stderr)


def interleave(runs: Sequence[tuple[str, Callable[[], Sequence[float]]]], num_rounds: int) -> dict[str, float]:
    """Run all in turn, `num_rounds` times, each round beginning with another one; return the median of medians."""
    medians: dict[str, list[float]] = defaultdict(list)
    for number in range(num_rounds):
        for shift in range(len(runs)):
            name, run = runs[(number + shift) % len(runs)]
            medians[name].append(statistics.median(run()))
    return {name: statistics.median(values) for name, values in medians.items()}
