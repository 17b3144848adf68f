"""The roles of a service as processes: who is started again, when, and who is not. Sleeping processes stand in."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from mmcached.cli.serve.engine_group import ORPHAN_GRACE_S
from mmcached.cli.serve.restarts import RestartPolicy
from mmcached.cli.serve.role_group import RoleGroup
from mmcached.cli.serve.roles import ENGINE_GONE, PAST_CACHES, Role
from mmcached.cli.watch.readiness_watch import ReadinessWatch
from mmcached.shm.stats.page import StatsPage, StatsPageReader, StatsPageWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import EngineStats
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import RoleName

CONFIG = ServiceConfig(
    world_size=1, max_restarts=2, restart_backoff_s=0.5, limits=LimitsConfig(not_ready_timeout_s=10.0)
)
SLEEP = [sys.executable, "-c", "import signal; signal.pause()"]
DEADLINE_S = 60.0
LOADER = "/lib64/ld-linux-x86-64.so.2"


@pytest.fixture
def directory(run_dir: Path) -> RunDir:
    found = RunDir(run_dir / "s")
    found.create()
    return found


@pytest.fixture
def readiness(directory: RunDir) -> Iterator[ReadinessWatch]:
    with ReadinessWatch(directory, CONFIG) as watch:
        yield watch


@pytest.fixture
def world_size() -> int:
    """The number of workers; a test that wants another gives it as a parameter."""
    return CONFIG.world_size


@pytest.fixture
def num_engines() -> int:
    """The number of engines; as `world_size`."""
    return 1


@pytest.fixture
def store_l2() -> str:
    """The URL of a second level; as `world_size`."""
    return ""


@pytest.fixture
def config(world_size: int, num_engines: int, store_l2: str) -> ServiceConfig:
    return msgspec.structs.replace(CONFIG, world_size=world_size, data_parallel_size=num_engines, store_l2=store_l2)


@pytest.fixture
def group(
    directory: RunDir, readiness: ReadinessWatch, config: ServiceConfig, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RoleGroup]:
    popen = subprocess.Popen

    def sleeping(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return popen(SLEEP, process_group=0)

    monkeypatch.setattr(subprocess, "Popen", sleeping)
    with (
        StatsPage.create(directory.stats_page) as page,
        StatsPageReader(page.path) as reader,
        RoleGroup(config, directory.path, directory, reader, readiness) as group,
    ):
        group.start()
        yield group
        group.stop(0.0, is_hurried=lambda: True)


def stall(readiness: ReadinessWatch, since: float) -> None:
    """Let nothing have gone through the one engine since then."""
    readiness.is_ready, readiness.not_ready_since, readiness.engine_not_ready_since = False, since, {0: since}


def die(role: Role) -> None:
    assert role.process is not None
    role.kill()
    role.process.wait(DEADLINE_S)


def test_a_group_through_which_nothing_goes_is_restarted_then_the_frontend_too(
    group: RoleGroup, readiness: ReadinessWatch
) -> None:
    frontend, engine, worker = group.roles
    now = time.monotonic()
    stall(readiness, now - 9.0)
    group.restart_if_stuck(now)
    assert all(role.is_alive for role in group.roles)
    stall(readiness, now - 11.0)
    group.restart_if_stuck(now)
    assert engine.process is not None
    assert engine.process.wait(DEADLINE_S) == -signal.SIGKILL
    assert frontend.is_alive
    assert readiness.not_ready_since is None
    group.keep_alive(now)
    assert worker.kill_at is not None, "its workers go with it"
    group.keep_alive(now + 1.0)
    assert engine.is_alive
    stall(readiness, now - 11.0)
    group.restart_if_stuck(now)
    assert frontend.process is not None
    assert frontend.process.wait(DEADLINE_S) == -signal.SIGKILL


@pytest.mark.parametrize("num_engines", [2])
def test_an_engine_that_dies_takes_its_own_workers_with_it(group: RoleGroup) -> None:
    assert [str(role.name) for role in group.roles] == [
        *("frontend", "engine 0", "worker 0.0", "engine 1", "worker 1.0")
    ]
    spared, group_1 = group.engines
    die(group_1.engine)
    now = time.monotonic()
    group.keep_alive(now)
    assert [worker.kill_at is not None for each in group.engines for worker in each.workers] == [False, True]
    group.keep_alive(now + ORPHAN_GRACE_S + 1.0)
    (worker,) = group_1.workers
    assert worker.process is not None
    assert worker.process.wait(DEADLINE_S) == -signal.SIGKILL
    assert group_1.engine.is_alive
    assert (spared.are_all_alive, [role.num_restarts for role in spared.roles]) == (True, [0, 0])


@pytest.mark.parametrize("num_engines", [2])
def test_an_engine_through_which_nothing_goes_is_restarted_alone(group: RoleGroup, readiness: ReadinessWatch) -> None:
    works, hangs = group.engines
    now = time.monotonic()
    for _ in range(2):
        readiness.is_ready, readiness.engine_not_ready_since = True, {1: now - 9.0}
        group.restart_if_stuck(now)
        assert hangs.are_all_alive
        readiness.engine_not_ready_since = {1: now - 11.0}
        group.restart_if_stuck(now)
        assert hangs.engine.process is not None
        assert hangs.engine.process.wait(DEADLINE_S) == -signal.SIGKILL
        assert readiness.engine_not_ready_since == {}
        assert works.are_all_alive
        group.keep_alive(now)
        assert hangs.engine.due is not None
        group.keep_alive(now + 100.0)
        for worker in hangs.workers:  # killed, as it did not end with its engine
            assert worker.process is not None
            worker.process.wait(DEADLINE_S)
        group.keep_alive(now + 100.0)
        group.keep_alive(now + 200.0)
        now += 200.0
    assert group.frontend.num_restarts == 0


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("num_engines", [2])
def test_deaths_are_forgiven_to_the_workers_of_the_engine_that_has_found_the_request(
    group: RoleGroup, directory: RunDir, index: int
) -> None:
    now = time.monotonic()
    (blamed,), (fails,) = (each.workers for each in group.engines)

    def die_and_start(worker: Role) -> None:
        die(worker)
        group.keep_alive(now)
        assert worker.due is not None
        group.keep_alive(worker.due)

    for worker in (blamed, fails):
        for _ in range(CONFIG.max_restarts):
            die_and_start(worker)
    with StatsPageWriter(directory.stats_page, RoleName("engine", 0)) as page:
        for number in (1, 2):
            page.publish(EngineStats(poisonous_requests=number))
            for _ in range(CONFIG.max_restarts):
                die_and_start(blamed)
        with pytest.raises(ServiceUnavailable, match=rf"worker {index}\.0 died too often"):
            die_and_start((blamed, fails)[index])


@pytest.mark.parametrize("world_size", [0])
def test_a_store_is_a_frontend_alone_and_that_is_killed_at_once_if_it_is_stuck(
    group: RoleGroup, readiness: ReadinessWatch
) -> None:
    (frontend,) = group.roles
    assert frontend is group.frontend
    assert group.engines == []
    now = time.monotonic()
    stall(readiness, now - 11.0)
    group.restart_if_stuck(now)
    assert frontend.process is not None
    assert frontend.process.wait(DEADLINE_S) == -signal.SIGKILL
    group.keep_alive(now)
    assert frontend.due is not None
    group.keep_alive(frontend.due)
    assert (frontend.is_alive, frontend.num_restarts) == (True, 1)


def test_who_cannot_be_started_is_tried_again_for_ever(group: RoleGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = group.roles[2]
    die(worker)
    now = time.monotonic()
    group.keep_alive(now)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        for _ in range(10):
            assert worker.due is not None
            group.keep_alive(worker.due)
        assert worker.due is not None
        assert worker.due - time.monotonic() > 4.0, "ever less often"
        assert not worker.is_given_up
    group.keep_alive(worker.due)
    assert worker.is_alive
    assert worker.num_restarts == 1


def test_a_worker_is_excused_once_for_each_death_of_its_engine() -> None:
    policy = RestartPolicy(max_restarts=2, window_s=60.0, backoff_s=0.5, backoff_max_s=5.0)
    role = Role(RoleName("worker", 0, 0), [], policy, num_threads=1)

    def end(*, is_excused: bool) -> float | None:
        role.process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({ENGINE_GONE})"])
        role.process.wait(DEADLINE_S)
        return role.reap(100.0, is_excused=is_excused)

    assert [end(is_excused=True) for _ in range(3)] == [0.0] * 3
    assert [end(is_excused=False) for _ in range(3)] == [0.5, 1.0, None], "the byte of its rank is held by a ghost"


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "GLIBC_TUNABLES"])
@pytest.mark.parametrize("wanted", ["7", None])
def test_a_user_s_word_counts(wanted: str | None, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, str]] = []

    def look(command: list[str], *, env: dict[str, str], **options: object) -> None:
        environments.append(env)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.delenv(variable, raising=False)
    if wanted is not None:
        monkeypatch.setenv(variable, wanted)
    monkeypatch.setattr(subprocess, "Popen", look)
    role = Role(RoleName("worker", 0, 0), [], RestartPolicy.from_config(CONFIG), num_threads=3)
    with pytest.raises(OSError, match="unavailable"):
        role.spawn()
    default = {"OMP_NUM_THREADS": "3", **PAST_CACHES}[variable]
    assert environments[0][variable] == (wanted or default)


@pytest.mark.skipif(not Path(LOADER).exists(), reason="no glibc for x86-64")
def test_the_c_library_copies_past_the_caches() -> None:
    listed = subprocess.run([LOADER, "--list-tunables"], env=PAST_CACHES, capture_output=True, text=True, check=True)
    assert "glibc.cpu.x86_non_temporal_threshold: 0x200000 " in listed.stdout


L2 = pytest.mark.parametrize("store_l2", ["redis://cache"])


@L2
def test_the_second_level_is_started_again_for_ever_and_alone(group: RoleGroup, readiness: ReadinessWatch) -> None:
    assert [str(role.name) for role in group.roles] == ["frontend", "second level", "engine 0", "worker 0.0"]
    (second,) = group.second_level
    others = [role for role in group.roles if role is not second]
    readiness.not_ready_since = since = time.monotonic()
    now = since
    for number in range(4 * CONFIG.max_restarts):
        die(second)
        group.keep_alive(now)
        assert second.due is not None
        assert second.due - now <= 25 * CONFIG.restart_backoff_s
        group.keep_alive(now := second.due)
        assert (second.is_alive, second.num_restarts) == (True, number + 1)
    assert all(role.is_alive and role.num_restarts == 0 for role in others)
    assert readiness.not_ready_since == since, "the service is as ready as it was"


@L2
def test_a_start_does_not_wait_for_the_second_level(group: RoleGroup) -> None:
    (second,) = group.second_level
    die(second)
    now = time.monotonic()
    group.require(now)
    assert second.due is not None
    group.require(now)
    group.require(second.due)
    assert second.is_alive
    die(group.frontend)
    with pytest.raises(ServiceUnavailable, match="frontend ended"):
        group.require(now)


@L2
def test_the_second_level_is_ended_last(group: RoleGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    terminate = Role.terminate

    def noted(role: Role) -> None:
        ended.append(str(role.name))
        terminate(role)

    monkeypatch.setattr(Role, "terminate", noted)
    group.stop(0.0, is_hurried=lambda: False)
    assert ended == ["frontend", "engine 0", "worker 0.0", "second level"]
