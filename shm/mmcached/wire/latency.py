"""Histograms of durations, in buckets whose bounds are the same everywhere: 1, 2, 5 µs and so on, up to 100 s.

Counts only rise, so that those of several processes, and of several lives of one, can be added; see
`mmcached.shm.stats.page`. `quantile` computes the same as Prometheus' `histogram_quantile`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Annotated, ClassVar, Self

import msgspec

BOUNDS_NS: tuple[int, ...] = (*(digit * 10**power for power in range(3, 11) for digit in (1, 2, 5)), 10**11)
"""The inclusive upper bound of each bucket in ns; the last bucket, without a bound here, takes all longer durations."""
NUM_BUCKETS = len(BOUNDS_NS) + 1
NUM_WORDS = NUM_BUCKETS + 1
"""The counts of the buckets, then the sum."""

_Counts = Annotated[tuple[int, ...], msgspec.Meta(min_length=NUM_BUCKETS, max_length=NUM_BUCKETS)]


def bucket_of(duration_ns: int) -> int:
    """Return the bucket of a duration.

    >>> [bucket_of(ns) for ns in (0, 1_000, 1_001, 10**11, 10**12)]
    [0, 0, 1, 24, 25]
    """
    return bisect_left(BOUNDS_NS, duration_ns)


class Histogram(msgspec.Struct, frozen=True):
    """Durations by bucket, and their sum.

    >>> Histogram.of_words([0] * 4 + [3, 1] + [0] * 20 + [90_000])
    Histogram(4 durations, 0.00009 s)
    """

    num_words: ClassVar[int] = NUM_WORDS

    counts: _Counts = (0,) * NUM_BUCKETS
    sum_ns: int = 0

    @classmethod
    def of_words(cls, words: Sequence[int]) -> Self:
        return cls(tuple(words[:NUM_BUCKETS]), words[NUM_BUCKETS])

    def words(self) -> tuple[int, ...]:
        return *self.counts, self.sum_ns

    @property
    def num(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Return the quantile in seconds, interpolated within its bucket; None without durations.

        >>> Histogram.of_words([0] * 4 + [4, 1] + [0] * 20 + [90_000]).quantile(0.4)
        1.5e-05
        """
        rank = share * self.num
        for bucket, reached in enumerate(accumulate(self.counts)):
            if reached and reached >= rank:
                low, high = (*(0,), *BOUNDS_NS)[bucket], BOUNDS_NS[min(bucket, len(BOUNDS_NS) - 1)]
                inside = (rank - (reached - self.counts[bucket])) / self.counts[bucket]
                return (low + (high - low) * inside) / 1e9
        return None

    def __add__(self, more: Histogram) -> Histogram:
        counts = tuple(one + other for one, other in zip(self.counts, more.counts, strict=True))
        return Histogram(counts, self.sum_ns + more.sum_ns)

    def since(self, before: Histogram) -> Histogram:
        """Return the durations counted since `before`, an earlier histogram of the same process."""
        counts = tuple(max(0, now - then) for now, then in zip(self.counts, before.counts, strict=True))
        return Histogram(counts, max(0, self.sum_ns - before.sum_ns))

    def __repr__(self) -> str:
        return f"Histogram({self.num} durations, {self.sum_ns / 1e9:.5f} s)"


class Latency:
    """A histogram to which one thread adds."""

    def __init__(self) -> None:
        self._words = [0] * NUM_WORDS

    def add(self, seconds: float) -> None:
        """Count one duration; a negative one, from a clock that was turned back, counts as 0."""
        duration_ns = max(0, round(seconds * 1e9))
        self._words[bucket_of(duration_ns)] += 1
        self._words[NUM_BUCKETS] += duration_ns

    def add_words(self, more: Sequence[int]) -> None:
        """Add another process's counts, `NUM_WORDS` words."""
        for index, number in enumerate(more):
            self._words[index] += number

    def histogram(self) -> Histogram:
        return Histogram.of_words(self._words)
