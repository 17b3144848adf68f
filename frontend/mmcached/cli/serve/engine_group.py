"""One engine with its workers, which live and die together, apart from other engines."""

from __future__ import annotations

from collections.abc import Mapping

from mmcached.cli.serve.roles import Role
from mmcached.shm.stats.page import RoleSnapshot
from mmcached.shm.stats.service import stats_of
from mmcached.wire.engine_stats import EngineStats
from mmcached.wire.stats import RoleName

ORPHAN_GRACE_S = 2.0
"""Time for a worker to notice that its engine is dead, before it is killed."""


class EngineGroup:
    """The processes of one engine.

    Attributes:
        roles: In the order in which they are started.
        num_deaths: Number of the engine's deaths.
    """

    def __init__(self, engine: Role, workers: list[Role]) -> None:
        self.engine = engine
        self.workers = workers
        self.roles = [engine, *workers]
        self.num_deaths = 0
        self._num_poisonous_requests = 0

    @property
    def index(self) -> int:
        return self.engine.name.engine

    @property
    def are_all_alive(self) -> bool:
        return all(role.is_alive for role in self.roles)

    def engine_died(self, now: float) -> None:
        """Schedule the killing of workers that do not end by themselves: a stuck worker pins its leases."""
        self.num_deaths += 1
        for worker in self.workers:
            worker.kill_at = now + ORPHAN_GRACE_S if worker.is_alive else None

    def forgive_blamed_deaths(self, snapshots: Mapping[RoleName, RoleSnapshot]) -> None:
        """Do not count workers' deaths for which the engine has found the request: such requests may come all day."""
        num_found = stats_of(snapshots, self.engine.name, EngineStats).poisonous_requests
        if num_found > self._num_poisonous_requests:
            for worker in self.workers:
                worker.forgive()
        self._num_poisonous_requests = num_found
