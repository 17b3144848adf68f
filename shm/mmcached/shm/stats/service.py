"""Combines the figures of several roles from the stats page in one record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from mmcached.shm.stats.page import RoleSnapshot
from mmcached.wire.engine_stats import EngineStats, WorkerStats
from mmcached.wire.figures import StatsRecord
from mmcached.wire.stats import FrontendStats, RoleName, SecondLevelStats, ServiceStats

StatsT = TypeVar("StatsT", bound=StatsRecord)


def stats_of(snapshots: Mapping[RoleName, RoleSnapshot], role: RoleName, kind: type[StatsT]) -> StatsT:
    """Return a role's record; zeros if it has none of this kind."""
    found = snapshots.get(role)
    return found.stats if found is not None and isinstance(found.stats, kind) else kind()


def service_stats(
    snapshots: Mapping[RoleName, RoleSnapshot], frontend: FrontendStats, engines: Iterable[int]
) -> ServiceStats:
    """Return the figures of a frontend, of these engines, each with its workers, and of the second level."""
    return ServiceStats(
        **msgspec.structs.asdict(frontend),
        engines=[_engine_stats(snapshots, engine) for engine in engines],
        second_level=stats_of(snapshots, RoleName("second_level"), SecondLevelStats),
    )


def _engine_stats(snapshots: Mapping[RoleName, RoleSnapshot], engine: int) -> EngineStats:
    workers = sorted(role for role in snapshots if role.kind == "worker" and role.engine == engine)
    return msgspec.structs.replace(
        stats_of(snapshots, RoleName("engine", engine), EngineStats),
        workers=[stats_of(snapshots, worker, WorkerStats) for worker in workers],
    )
