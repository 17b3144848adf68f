"""Who is silent for too long, and who is not: steps, starts, and a supervisor that slept itself."""

from __future__ import annotations

import pytest

from mmcached.cli.serve.watchdog import Watchdog
from mmcached.shm.stats.page import RoleSnapshot
from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.stats import FrontendStats, RoleName

FRONTEND, WORKER = RoleName("frontend"), RoleName("worker", 0, 0)
CONFIG = ServiceConfig(limits=LimitsConfig(silence_timeout_s=5.0), step_timeout_s=10.0, start_timeout_s=20.0)


class Watched:
    """A watchdog, a clock, and roles that beat or do not."""

    def __init__(self, *names: RoleName, config: ServiceConfig = CONFIG) -> None:
        self.watchdog = Watchdog(config)
        self.now = 100.0
        self.pids = {name: 1000 + index for index, name in enumerate(names)}
        self.beats = {name: (pid, self.now) for name, pid in self.pids.items()}

    def beat(self, name: RoleName) -> None:
        self.beats[name] = (self.pids[name], self.now)

    def look(self, *, after_s: float | None = None) -> list[RoleName]:
        self.now += self.watchdog.interval_s if after_s is None else after_s
        snapshots = {
            name: RoleSnapshot(pid, True, self.now - at, 0.0, 1, FrontendStats())
            for name, (pid, at) in self.beats.items()
        }
        return [name for name, _ in self.watchdog.overdue(self.pids, snapshots, self.now)]

    def first_overdue(self, name: RoleName) -> float:
        start = self.now
        while name not in self.look():
            assert self.now - start < 100
        return self.now - start


@pytest.mark.parametrize(("name", "limit_s"), [(FRONTEND, 5.0), (WORKER, 10.0)])
def test_a_silent_role_is_found_in_time(name: RoleName, limit_s: float) -> None:
    """A worker's limit is that of a step."""
    watched = Watched(name)
    assert limit_s <= watched.first_overdue(name) <= limit_s + 2 * watched.watchdog.interval_s


def test_a_role_that_beats_is_never_found() -> None:
    watched = Watched(FRONTEND)
    for _ in range(100):
        assert watched.look() == []
        watched.beat(FRONTEND)


@pytest.mark.parametrize("silence_s", [1.0, 2.0, 30.0])
def test_a_role_that_rests_as_long_as_it_may_is_never_found(silence_s: float) -> None:
    limits = LimitsConfig(silence_timeout_s=silence_s)
    watched = Watched(FRONTEND, config=ServiceConfig(limits=limits))
    for turn in range(200):
        assert watched.look(after_s=watched.watchdog.interval_s / 7) == []
        if turn % 8 == 0:  # a little later than it should
            watched.beat(FRONTEND)


def test_a_role_that_has_not_come_yet_may_take_as_long_as_a_start() -> None:
    """Its slot still speaks of its predecessor."""
    watched = Watched(FRONTEND)
    watched.pids[FRONTEND] = 77
    assert watched.first_overdue(FRONTEND) >= CONFIG.start_timeout_s


def test_what_the_supervisor_slept_through_counts_for_nobody() -> None:
    watched = Watched(FRONTEND)
    watched.look()
    watched.beat(FRONTEND)
    assert watched.look(after_s=3600.0) == []
    watched.beat(FRONTEND)
    assert watched.look() == []


def test_silence_is_that_of_a_process() -> None:
    watched = Watched(FRONTEND)
    watched.first_overdue(FRONTEND)
    watched.pids[FRONTEND] = 77
    watched.beat(FRONTEND)
    assert watched.look() == []
