"""Drives the ring's transports: every transport of a comparison in turn, a few puts or hits each.

A figure is the median over rounds of the round's median. Every tensor carries a stamp in its first and last element,
which each reader reads back. `CopyLimit` is the physical limit: the fastest way to copy an item into a populated shared
mapping of the ring's size, of `memmove`, `np.copyto` and `Tensor.copy_`, since which one wins depends on the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import mmap
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from scripts.bench.harness import Unavailable, compare, tell_once
from scripts.bench.ring_processes import ReaderPool, Shape, WriterEnd

MIB = 1 << 20
ALIGNMENT = 256
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


def interleave(runs: Sequence[tuple[str, Callable[[], Sequence[float]]]], num_rounds: int) -> dict[str, float]:
    """Run all in turn, each round beginning with another one; return the median of each one's medians."""
    samplers = {name: partial(_median, run) for name, run in runs}
    return compare(samplers, num_rounds, num_unmeasured=0)


def _median(run: Callable[[], Sequence[float]]) -> float:
    return statistics.median(run())


class CopyLimit:
    """A mapping as large as a ring, into whose places in turn items are copied.

    Args:
        items: `(n,)` float32 each, all of one size; they are the source in turn.
    """

    def __init__(self, ring_bytes: int, items: Sequence[torch.Tensor]) -> None:
        fd = os.memfd_create("copy-limit")
        try:
            os.posix_fallocate(fd, 0, ring_bytes)
            mapping = mmap.mmap(fd, ring_bytes)
        finally:
            os.close(fd)
        self._target = np.frombuffer(mapping, np.uint8)
        self._target[::4096] = 1
        self._tensor = torch.from_numpy(self._target)
        sources = [item.view(torch.uint8) for item in items]
        self._nbytes = sources[0].numel()
        self._places = itertools.cycle(
            range(0, ring_bytes - self._nbytes + 1, -(-self._nbytes // ALIGNMENT) * ALIGNMENT)
        )
        self._sources = itertools.cycle([(each, each.numpy(), each.data_ptr()) for each in sources])
        self._ways: list[tuple[Callable[[int], None], list[float]]] = [
            (way, []) for way in (self._memmove, self._copyto, self._copy)
        ]

    def measure(self, num_samples: int) -> list[float]:
        """Add one round of each way; return its medians in us."""
        for way, medians in self._ways:
            samples = []
            for _ in range(num_samples):
                place = next(self._places)
                started = time.perf_counter_ns()
                way(place)
                samples.append((time.perf_counter_ns() - started) / 1000)
            medians.append(statistics.median(samples))
        return [medians[-1] for _, medians in self._ways]

    def best_us(self) -> float:
        """Return the median over rounds of the fastest way."""
        return min(statistics.median(medians) for _, medians in self._ways)

    def _memmove(self, place: int) -> None:
        _, _, address = next(self._sources)
        ctypes.memmove(self._target.ctypes.data + place, address, self._nbytes)

    def _copyto(self, place: int) -> None:
        _, array, _ = next(self._sources)
        np.copyto(self._target[place : place + self._nbytes], array)

    def _copy(self, place: int) -> None:
        tensor, _, _ = next(self._sources)
        self._tensor[place : place + self._nbytes].copy_(tensor)
