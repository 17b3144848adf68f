"""The physical limit: the fastest way to copy an item into a populated shared mapping of the ring's size.

Three ways are measured, since which one wins depends on size and machine: `memmove`, `np.copyto`, `Tensor.copy_`.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

ALIGNMENT = 256


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
