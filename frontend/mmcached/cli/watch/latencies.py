"""Computes latency quantiles from the roles' histograms."""

from __future__ import annotations

import msgspec

from mmcached.wire.figures import histograms
from mmcached.wire.latency import Histogram
from mmcached.wire.stats import ServiceStats

_SUFFIX = "_seconds"


class LatencyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of one kind of work.

    Attributes:
        num: Number of measurements; of hits one in 64 is measured.
        p50_s, p99_s: Median and 99th percentile in seconds.
    """

    num: int
    p50_s: float
    p99_s: float


def histograms_of(stats: ServiceStats) -> dict[str, Histogram]:
    """Return the histogram of each kind of work, over all roles: `hit`, `put`, `l2_get`, and so on."""
    found: dict[str, Histogram] = {}
    workers = [worker for engine in stats.engines for worker in engine.workers]
    for record in (stats, *stats.engines, *workers):
        for metric, histogram in histograms(record):
            name = "_".join([metric.name.removesuffix(_SUFFIX), *metric.labels.values()])
            found[name] = found[name] + histogram if name in found else histogram
    return found


def latencies_of(found: dict[str, Histogram]) -> dict[str, LatencyStatus]:
    return {
        name: LatencyStatus(num=histogram.num, p50_s=p50_s, p99_s=p99_s)
        for name, histogram in found.items()
        if (p50_s := histogram.quantile(0.5)) is not None and (p99_s := histogram.quantile(0.99)) is not None
    }


def in_words(seconds: float) -> str:
    """Return a duration with a unit.

    >>> [in_words(seconds) for seconds in (0.0000123, 0.0456, 0.9996, 1.5, 100.0)]
    ['12.3 µs', '45.6 ms', '1 s', '1.5 s', '100 s']
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
