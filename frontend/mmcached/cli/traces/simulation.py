"""Simulates a store on recorded uses by the store's own rules, without payloads; computes the curve over sizes.

Every use counts, the first one of each item too, which no store finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmcached.cli.traces.simulated_store import StoreCache
from mmcached.cli.traces.use_trace import UseTrace

SIMULATED_USES = 40_000
"""Uses that are played for each size of the curve; of a longer trace a random part of the items."""
MIN_STORE_BYTES = 1 << 20
NUM_SIZES = 10
"""Sizes of the curve: all bytes of the trace, a half, a quarter …"""
KNEE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Point:
    """What a store of one size finds.

    Attributes:
        store_bytes: Its size.
        found: Share of the uses.
        found_bytes: Share of the bytes of the uses.
        saved: Share of the seconds that all uses cost without a store.
    """

    store_bytes: int
    found: float
    found_bytes: float
    saved: float


def play(trace: UseTrace, store_bytes: int, advance: Callable[[], None] = lambda: None) -> npt.NDArray[np.bool_]:
    """Return which uses a store of that size finds, `(num_uses,)`.

    Args:
        advance: Called after each use.
    """
    cache = StoreCache(max(store_bytes, MIN_STORE_BYTES))
    sizes, costs = trace.sizes.tolist(), trace.costs_s.tolist()
    is_found = np.zeros(len(trace.keys), np.bool_)
    for index, key in enumerate(trace.keys.tolist()):
        is_found[index] = cache.request(key, sizes[key], costs[key])
        advance()
    return is_found


def point(trace: UseTrace, store_bytes: int, is_found: npt.NDArray[np.bool_]) -> Point:
    nbytes, seconds = trace.sizes[trace.keys], trace.costs_s[trace.keys]
    return Point(
        store_bytes,
        float(is_found.mean()),
        float(nbytes[is_found].sum() / nbytes.sum()),
        float(seconds[is_found].sum() / seconds.sum()) if seconds.sum() else 0.0,
    )


def curve(trace: UseTrace, advance: Callable[[], None] = lambda: None) -> list[Point]:
    """Return what stores of `NUM_SIZES` sizes find, the smallest first; sizes below the largest record are left out."""
    played, share = trace.sampled(SIMULATED_USES)
    points = []
    for store_bytes in curve_sizes(trace):
        is_found = play(played, int(store_bytes * share), advance)
        points.append(point(played, store_bytes, is_found))
    return points


def curve_sizes(trace: UseTrace) -> list[int]:
    total, largest = int(trace.sizes[np.unique(trace.keys)].sum()), int(trace.sizes.max())
    total = total * 5 // 3  # a quarter is for nurseries, and places have holes
    return [total >> halvings for halvings in reversed(range(NUM_SIZES)) if total >> halvings >= 4 * largest] or [total]


def knee(points: Sequence[Point]) -> Point:
    """Return the smallest store that saves nine tenths of the seconds that the largest one saves."""
    enough = KNEE_SHARE * points[-1].saved
    return next(each for each in points if each.saved >= enough)
