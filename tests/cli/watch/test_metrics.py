"""The metrics page parses, and names what is counted and nothing else."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import Annotated

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from prometheus_client.registry import Collector, CollectorRegistry

from mmcached.cli.watch.metrics import figures_of, make_registry
from mmcached.shm.stats.layout import FIELDS, TABLE_FIELDS, Fields
from mmcached.shm.stats.page import RoleSnapshot, StatsPageReader, StatsPageWriter
from mmcached.wire.figures import Metric as FigureMetric
from mmcached.wire.figures import figures
from mmcached.wire.latency import Latency
from mmcached.wire.slow_log import SlowLog
from mmcached.wire.stats import (
    METRICS,
    ClientStats,
    FrontendStats,
    ItemStats,
    RingStats,
    RoleName,
    StoreStats,
    SupervisorStats,
)
from tests.cli.fake_view import ENGINE, FRONTEND, WORKER, FakeView, a_role, page_of

SUPERVISOR = RoleName("supervisor")
SECOND_LEVEL = RoleName("second_level")
ROLES = [SUPERVISOR, FRONTEND, SECOND_LEVEL, ENGINE, RoleName("worker"), WORKER]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
Page = tuple[FakeView, StatsPageReader, dict[RoleName, StatsPageWriter]]


@pytest.fixture
def page(run_dir: Path) -> Iterator[Page]:
    given = [a_role(FRONTEND, os.getpid(), "running"), a_role(ENGINE, None, "restarting", restarts=2)]
    with page_of(run_dir, SUPERVISOR, FRONTEND, ENGINE, WORKER) as (reader, writers):
        yield FakeView(run_dir, given=given), reader, writers


def text_of(page: Page) -> str:
    view, reader, _ = page
    return generate_latest(make_registry(view, reader.read)).decode()


def families_of(page: Page) -> list[Metric]:
    return list(parse(text_of(page)))


def samples_of(page: Page) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families_of(page)
        for sample in family.samples
    }


def a_sample(page: Page, name: str, **labels: str) -> float:
    return samples_of(page)[name, tuple(sorted(labels.items()))]


def test_the_size_of_dev_shm_is_told(page: Page) -> None:
    assert 0 < a_sample(page, "mmcached_shm_free_bytes") <= a_sample(page, "mmcached_shm_capacity_bytes")


def test_processes_reach_the_page(page: Page) -> None:
    assert a_sample(page, "mmcached_process_up", role="frontend") == 1
    assert a_sample(page, "mmcached_process_up", role="engine 0") == 0
    assert a_sample(page, "mmcached_process_restarts_total", role="engine 0") == 2
    assert a_sample(page, "mmcached_heartbeat_age_seconds", role="frontend") >= 0
    assert a_sample(page, "mmcached_draining") == 0
    page[0].is_draining = True
    assert a_sample(page, "mmcached_draining") == 1
    assert a_sample(page, "mmcached_ready") == 0
    page[0].is_ready = True
    assert a_sample(page, "mmcached_ready") == 1
    (build,) = (family for family in families_of(page) if family.name == "mmcached_build_info")
    assert set(build.samples[0].labels) == {"version", "python", "word_store"}


def test_the_page_is_what_dashboards_know() -> None:
    """Every figure of every role, byte for byte: names, kinds, help, labels and order."""

    class Figures(Collector):
        def collect(self) -> Iterator[Metric]:
            return figures_of({role: snapshot_of(role) for role in ROLES})

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures())
    expected, found = Path(__file__).with_name("metrics.txt").read_text(), generate_latest(registry).decode()
    changes = "\n".join(unified_diff(expected.split("\n"), found.split("\n"), "metrics.txt", "now", lineterm="", n=0))
    assert not changes, changes


def snapshot_of(role: RoleName) -> RoleSnapshot:
    """A slot whose figures are all different, and the same in every run."""
    fields = FIELDS[role.kind]
    values = [zlib.crc32(f"{role} {name}".encode()) % 1_000_000 for name in fields.names]
    return RoleSnapshot(1, True, 0.0, 0.0, 1, fields.build(values))


def test_a_new_counter_is_a_field_with_its_metric_and_no_more(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class More(SupervisorStats, frozen=True):
        surprises: Annotated[int, FigureMetric("surprises", kind="nice")] = 0

    monkeypatch.setitem(METRICS, "surprises", "what nobody expected")
    monkeypatch.setitem(FIELDS, "supervisor", Fields(More))
    with page_of(run_dir, SUPERVISOR) as (reader, writers):
        writers[SUPERVISOR].publish(More(surprises=3))
        lines = generate_latest(make_registry(FakeView(run_dir), reader.read)).decode().splitlines()
    assert "# HELP mmcached_surprises_total what nobody expected" in lines
    assert "# TYPE mmcached_surprises_total counter" in lines
    assert 'mmcached_surprises_total{kind="nice",role="supervisor"} 3.0' in lines


def test_every_figure_has_a_metric_and_every_metric_a_figure() -> None:
    """`draining` is told of the supervisor by name, not by role; `trouble` is a word; a slow log is no number."""
    kinds = [*FIELDS.values(), *TABLE_FIELDS.values()]
    found = [figure for fields in kinds for figure in figures(fields.record) if figure.block is not SlowLog]
    assert [figure.name for figure in found if not figure.metrics] == ["draining", "trouble"]
    assert {metric.name for figure in found for metric in figure.metrics} == set(METRICS)


def test_a_metric_has_one_kind_and_one_set_of_labels() -> None:
    forms: dict[str, set[tuple[bool, tuple[str, ...]]]] = {}
    for fields in (*FIELDS.values(), *TABLE_FIELDS.values()):
        for figure in figures(fields.record):
            for metric in figure.metrics:
                forms.setdefault(metric.name, set()).add((figure.is_gauge, tuple(metric.labels)))
    assert {name for name, found in forms.items() if len(found) > 1} == set()


def test_clients_are_told_apart_by_their_names(page: Page) -> None:
    by_client = {"vllm": ClientStats(hits=4, misses=2, puts=1), "other": ClientStats(misses=3)}
    page[2][FRONTEND].publish(FrontendStats(by_client=by_client))
    for name, stats in by_client.items():
        for figure in ("hits", "misses", "puts"):
            value = a_sample(page, f"mmcached_client_{figure}_total", client=name, role="frontend")
            assert value == getattr(stats, figure)


def test_a_histogram_has_its_buckets_added_up_as_prometheus_wants(page: Page) -> None:
    latency = Latency()
    for seconds in (0.5e-6, 0.001, 0.001, 1000.0):
        latency.add(seconds)
    page[2][FRONTEND].publish(FrontendStats(store=StoreStats(put_latency=latency.histogram())))
    expected = {"1e-06": 1, "0.0005": 1, "0.001": 3, "100.0": 3, "+Inf": 4}
    found = {le: a_sample(page, "mmcached_put_seconds_bucket", role="frontend", le=le) for le in expected}
    assert found == expected
    assert a_sample(page, "mmcached_put_seconds_count", role="frontend") == 4
    assert a_sample(page, "mmcached_put_seconds_sum", role="frontend") == pytest.approx(1000.002)
    assert a_sample(page, "mmcached_step_seconds_count", role="engine 0") == 0


def test_queries_and_hits_come_together(page: Page) -> None:
    labels = {
        name: {labels for found, labels in samples_of(page) if found == f"mmcached_cache_{name}_total"}
        for name in ("queries", "hits")
    }
    assert labels["queries"] == labels["hits"]
    caches = {dict(each)["cache"] for each in labels["queries"]}
    assert caches == {"processor", "encoder", "kv_prefix", "tensor_prefix", "store"}


def test_names_and_kinds_follow_the_conventions(page: Page) -> None:
    text = text_of(page)
    for family in parse(text):
        assert family.documentation
        assert all(sample.name.endswith("_total") == (family.type == "counter") for sample in family.samples)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines), "no sample comes twice"


@pytest.mark.parametrize(
    ("cache", "stats"),
    [
        ("processor", FrontendStats(items=ItemStats(capacity_bytes=1, used_bytes=1))),
        ("store", FrontendStats(store=StoreStats(ring=RingStats(data_bytes=1, used_bytes=1)))),
    ],
)
def test_without_a_ring_nothing_is_said_about_its_cache(page: Page, cache: str, stats: FrontendStats) -> None:
    def caches_with_bytes() -> set[str]:
        found = {dict(labels)["cache"] for name, labels in samples_of(page) if name == "mmcached_cache_bytes"}
        return found & {"processor", "store"}

    assert caches_with_bytes() == set()
    page[2][FRONTEND].publish(stats)
    assert caches_with_bytes() == {cache}


def test_openmetrics_parses_too(page: Page) -> None:
    view, reader, _ = page
    text = generate_openmetrics(make_registry(view, reader.read)).decode()  # type: ignore[no-untyped-call]
    families = parse_openmetrics(text)  # type: ignore[no-untyped-call]
    assert {family.name for family in families} >= {"mmcached_requests", "mmcached_build"}
