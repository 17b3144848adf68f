"""The metrics page: the stats page's figures under Prometheus names.

The records in `mmcached.wire.stats` define the metric of each field. Counters continue over a role's death (see
`mmcached.shm.stats.page`); after a restart of the whole service they start at 0, as Prometheus expects. Every metric of
a role has the label `role` (`frontend`, `engine 0`, `worker 0.1`); sum over it.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector, CollectorRegistry

from mmcached.cli.installed import installed_version
from mmcached.cli.watch.service_status import ServiceView, Snapshots, role_statuses
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.words import WORD_STORE_NAME
from mmcached.wire.figures import histograms, samples
from mmcached.wire.latency import BOUNDS_NS
from mmcached.wire.stats import METRICS

PREFIX = "mmcached_"
BOUNDS = [*(str(bound / 1e9) for bound in BOUNDS_NS), "+Inf"]
"""The label `le` of each bucket of a histogram, in seconds."""
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class StatsCollector(Collector):
    """Reads the page and the supervisor's view at each scrape; keeps no state."""

    def __init__(self, look: Callable[[], ServiceView], read_page: Callable[[], Snapshots]) -> None:
        self._look = look
        self._read_page = read_page

    def collect(self) -> Iterator[Family | InfoMetricFamily]:
        snapshots = self._read_page()
        yield self._build()
        yield from self._processes(self._look(), snapshots)
        yield from figures_of(snapshots)

    def _build(self) -> InfoMetricFamily:
        facts = {
            "version": installed_version(),
            "python": platform.python_version(),
            "word_store": WORD_STORE_NAME,
        }
        return InfoMetricFamily(f"{PREFIX}build", "Versions of mmcached and its platform.", facts)

    def _processes(self, view: ServiceView, snapshots: Snapshots) -> Iterator[Family]:
        role = ["role"]
        up = GaugeMetricFamily(f"{PREFIX}process_up", "1 if the process runs", labels=role)
        restarts = CounterMetricFamily(
            f"{PREFIX}process_restarts", "restarts of the role by the supervisor", labels=role
        )
        ages = GaugeMetricFamily(
            f"{PREFIX}heartbeat_age_seconds", "seconds since the last turn of the role's loop", labels=role
        )
        for status in role_statuses(view, snapshots):
            up.add_metric([status.name], float(status.state in ("starting", "running")))
            restarts.add_metric([status.name], status.restarts)
            if status.heartbeat_age_s is not None:
                ages.add_metric([status.name], status.heartbeat_age_s)
        draining = GaugeMetricFamily(f"{PREFIX}draining", "1 while the service drains", float(view.is_draining))
        ready = GaugeMetricFamily(
            f"{PREFIX}ready", "1 if the supervisor's last probe has succeeded", float(view.is_ready)
        )
        yield from (up, restarts, ages, draining, ready)
        shm = shutil.disk_usage(SHM_DIR)
        yield GaugeMetricFamily(f"{PREFIX}shm_capacity_bytes", "size of /dev/shm", shm.total)
        yield GaugeMetricFamily(f"{PREFIX}shm_free_bytes", "bytes of /dev/shm that are free", shm.free)


def figures_of(snapshots: Snapshots) -> Iterator[Family]:
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    of_histograms: dict[str, HistogramMetricFamily] = {}
    for role, snapshot in snapshots.items():
        for metric, histogram in histograms(snapshot.stats):
            if metric.name not in of_histograms:
                of_histograms[metric.name] = HistogramMetricFamily(
                    PREFIX + metric.name, METRICS[metric.name], labels=["role", *metric.labels]
                )
            buckets = list(zip(BOUNDS, map(float, accumulate(histogram.counts)), strict=True))
            of_histograms[metric.name].add_metric([str(role), *metric.labels.values()], buckets, histogram.sum_ns / 1e9)
        for metric, is_gauge, value in samples(snapshot.stats):
            if metric.name not in families:
                kind = GaugeMetricFamily if is_gauge else CounterMetricFamily
                labels = ["role", *metric.labels]
                families[metric.name] = kind(PREFIX + metric.name, METRICS[metric.name], labels=labels)
            families[metric.name].add_metric([str(role), *metric.labels.values()], round(value * metric.scale, 6))
    found: dict[str, Family] = {**families, **of_histograms}
    yield from (found[name] for name in METRICS if name in found)


def make_registry(look: Callable[[], ServiceView], read_page: Callable[[], Snapshots]) -> CollectorRegistry:
    """Return a registry with a `StatsCollector`; nothing is collected before the first scrape."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatsCollector(look, read_page))
    return registry
