"""The metrics page parses, names what is counted and nothing else, and its counters do not fall."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from mmcached.cli.watch.metrics import FIGURES, documented_metrics, make_registry
from mmcached.cli.watch.service_status import RoleView
from mmcached.shm.stats.layout import FIELDS
from mmcached.shm.stats.page import StatsPageReader, StatsPageWriter
from mmcached.wire.stats import (
    EngineStats,
    FrontendStats,
    KVCacheStats,
    RingStats,
    RoleName,
    StoreStats,
    SupervisorStats,
    WorkerStats,
)
from tests.cli.fake_view import ENGINE, FRONTEND, WORKER, FakeView, page_of

SUPERVISOR = RoleName("supervisor")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
Page = tuple[FakeView, StatsPageReader, dict[RoleName, StatsPageWriter]]


@pytest.fixture
def page(run_dir: Path) -> Iterator[Page]:
    given = [RoleView(FRONTEND, os.getpid(), "running"), RoleView(ENGINE, None, "restarting", restarts=2)]
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


def test_figures_reach_the_page(page: Page) -> None:
    writers = page[2]
    writers[FRONTEND].publish(FrontendStats(requests_done=7, requests_failed=2, desyncs=1, ring=RingStats(leases=3)))
    writers[ENGINE].publish(EngineStats(kv=KVCacheStats(queries=20, hits=15), leases_held=3))
    writers[WORKER].publish(WorkerStats(prefix_row_hits=9, bytes_viewed=1 << 40))
    writers[SUPERVISOR].publish(SupervisorStats(restarts=2))
    assert a_sample(page, "mmcached_requests_total", role="frontend", outcome="done") == 7
    assert a_sample(page, "mmcached_requests_total", role="frontend", outcome="failed") == 2
    assert a_sample(page, "mmcached_desync_total", role="frontend", side="sender") == 1
    assert a_sample(page, "mmcached_leases", role="frontend", side="writer") == 3
    assert a_sample(page, "mmcached_leases", role="engine 0", side="reader") == 3
    assert a_sample(page, "mmcached_cache_queries_total", role="engine 0", cache="kv_prefix") == 20
    assert a_sample(page, "mmcached_cache_hits_total", role="engine 0", cache="kv_prefix") == 15
    assert a_sample(page, "mmcached_cache_hits_total", role="worker 0.1", cache="tensor_prefix") == 9
    assert a_sample(page, "mmcached_saved_ipc_bytes_total", role="worker 0.1") == 1 << 40
    assert a_sample(page, "mmcached_supervisor_restarts_total", role="supervisor") == 2


def test_processes_reach_the_page(page: Page) -> None:
    assert a_sample(page, "mmcached_process_up", role="frontend") == 1
    assert a_sample(page, "mmcached_process_up", role="engine 0") == 0
    assert a_sample(page, "mmcached_process_restarts_total", role="engine 0") == 2
    assert a_sample(page, "mmcached_heartbeat_age_seconds", role="frontend") >= 0
    assert a_sample(page, "mmcached_draining") == 0
    page[0].is_draining = True
    assert a_sample(page, "mmcached_draining") == 1
    (build,) = (family for family in families_of(page) if family.name == "mmcached_build_info")
    assert set(build.samples[0].labels) == {"version", "python", "word_store"}


@pytest.mark.parametrize("kind", FIELDS)
def test_every_field_is_a_metric(kind: str) -> None:
    """A new field of a record fails here until the table says what it is called; `draining` is asked elsewhere."""
    assert {figure.source for figure in FIGURES[kind]} == set(FIELDS[kind].names) - {"draining"}


def test_documented_and_exported_are_the_same(page: Page) -> None:
    page[2][FRONTEND].publish(FrontendStats(ring=RingStats(data_bytes=1)))
    exported = {sample.name for family in families_of(page) for sample in family.samples}
    assert exported == set(documented_metrics())
    assert all(documented_metrics().values())


def test_queries_and_hits_come_together(page: Page) -> None:
    labels = {
        name: {labels for found, labels in samples_of(page) if found == f"mmcached_cache_{name}_total"}
        for name in ("queries", "hits")
    }
    assert labels["queries"] == labels["hits"]
    caches = {dict(each)["cache"] for each in labels["queries"]}
    assert caches == {"processor", "encoder", "kv_prefix", "tensor_prefix", "store"}


def test_names_and_kinds_follow_the_conventions(page: Page) -> None:
    page[2][FRONTEND].publish(FrontendStats(ring=RingStats(data_bytes=1)))
    text = text_of(page)
    for family in parse(text):
        assert family.name.startswith("mmcached_")
        assert ":" not in family.name
        assert family.documentation
        assert all(sample.name.endswith("_total") == (family.type == "counter") for sample in family.samples)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines), "no sample comes twice"


def test_a_gauge_field_is_a_gauge_metric_and_no_metric_is_both() -> None:
    kinds: dict[str, set[bool]] = {}
    for kind, figures in FIGURES.items():
        is_gauge = dict(zip(FIELDS[kind].names, FIELDS[kind].is_gauge, strict=True))
        for figure in figures:
            kinds.setdefault(figure.metric, set()).add(is_gauge[figure.source])
    assert {metric for metric, found in kinds.items() if len(found) > 1} == set()


def test_labels_of_one_metric_are_the_same_everywhere() -> None:
    names: dict[str, set[tuple[str, ...]]] = {}
    for figures in FIGURES.values():
        for figure in figures:
            names.setdefault(figure.metric, set()).add(tuple(figure.labels))
    assert {metric for metric, found in names.items() if len(found) > 1} == set()


@pytest.mark.parametrize(
    ("cache", "stats"),
    [
        ("processor", FrontendStats(ring=RingStats(data_bytes=1, used_bytes=1))),
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


def test_no_counter_falls_when_a_role_begins_anew(page: Page) -> None:
    view, _, writers = page
    path = view.run_dir / "stats.page"
    full = {role.kind: FIELDS[role.kind].build([100] * len(FIELDS[role.kind].names)) for role in writers}
    for role, writer in writers.items():
        writer.publish(full[role.kind])
        writer.close()
    before = {key: value for key, value in samples_of(page).items() if key[0].endswith("_total")}
    for role in writers:
        with StatsPageWriter(path, role) as again:
            after = samples_of(page)
            assert {key for key in before if after[key] < before[key]} == set()
            again.publish(full[role.kind])
    final = samples_of(page)
    not_on_the_page = "mmcached_process_restarts_total"
    assert all(final[key] == 2 * value for key, value in before.items() if key[0] != not_on_the_page)


def test_records_of_the_supervisor_can_travel() -> None:
    stats = SupervisorStats(restarts=1, draining=1)
    assert msgspec.json.decode(msgspec.json.encode(stats), type=SupervisorStats) == stats
