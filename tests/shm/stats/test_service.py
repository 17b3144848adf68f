"""The figures of several roles in one record."""

from __future__ import annotations

from pathlib import Path

from mmcached.shm.stats.page import StatsPage, StatsPageReader, StatsPageWriter
from mmcached.shm.stats.service import service_stats, stats_of
from mmcached.wire.engine_stats import EngineStats, KVCacheStats, WorkerStats
from mmcached.wire.stats import FrontendStats, RoleName, ServiceStats

FRONTEND, ENGINE = RoleName("frontend"), RoleName("engine")


def publish(path: Path, role: RoleName, stats: FrontendStats | EngineStats | WorkerStats) -> None:
    with StatsPageWriter(path, role) as writer:
        writer.publish(stats)


def test_figures_of_all_roles_make_one_record(tmp_path: Path) -> None:
    frontend, engine = FrontendStats(requests_done=3), EngineStats(steps=4, kv=KVCacheStats(hits=1))
    with StatsPage.create(tmp_path / "page") as page, StatsPageReader(page.path) as reader:
        publish(page.path, ENGINE, engine)
        publish(page.path, FRONTEND, frontend)
        for rank in (1, 0):
            publish(page.path, RoleName("worker", 0, rank), WorkerStats(items_encoded=rank))
        publish(page.path, RoleName("worker", 1, 0), WorkerStats(items_encoded=9))
        found = reader.read()
    assert stats_of(found, FRONTEND, FrontendStats) == frontend
    workers = [WorkerStats(items_encoded=0), WorkerStats(items_encoded=1)]
    first = EngineStats(steps=4, kv=KVCacheStats(hits=1), workers=workers)
    assert service_stats(found, frontend, [0]) == ServiceStats(requests_done=3, engines=[first])
    assert service_stats(found, frontend, [0, 1]).engines[1] == EngineStats(workers=[WorkerStats(items_encoded=9)])


def test_a_role_without_a_slot_has_counted_nothing() -> None:
    assert service_stats({}, FrontendStats(faults=1), [2]) == ServiceStats(faults=1, engines=[EngineStats()])
