"""The supervisor's decisions, with sleeping processes in the place of its roles."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcached.cli.serve.pidfd import has_ended, open_pidfd, terminate
from mmcached.cli.serve.restarts import RestartPolicy
from mmcached.cli.serve.roles import ENGINE_GONE, Role
from mmcached.cli.serve.supervisor import Supervisor
from mmcached.shm.stats.page import StatsPageWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, SegmentError, ServiceUnavailable
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.process.signals import STOP_SIGNALS
from mmcached.wire.stats import EngineStats, RoleName

CONFIG = ServiceConfig(
    world_size=1,
    mm_processor_cache_gb=1 / 64,
    store_gb=1 / 64,
    max_restarts=2,
    restart_backoff_s=0.5,
    limits=LimitsConfig(not_ready_timeout_s=10.0),
)
SLEEP = [sys.executable, "-c", "import signal; signal.pause()"]
DEADLINE_S = 60.0


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Sleeping processes that stand in for roles, as they are started."""
    found: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def sleeping(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = popen(SLEEP, process_group=0)
        found.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", sleeping)
    return found


@pytest.fixture
def supervisor(run_dir: Path, spawned: list[subprocess.Popen[bytes]]) -> Iterator[Supervisor]:
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    try:
        with Supervisor(run_dir / "s", CONFIG) as supervisor:
            for role in supervisor.all_roles:
                supervisor._spawn(role)
            yield supervisor
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def die(role: Role) -> None:
    assert role.process is not None
    role.kill()
    role.process.wait(DEADLINE_S)


def test_a_group_through_which_nothing_goes_is_restarted_then_the_frontend_too(supervisor: Supervisor) -> None:
    frontend, engine, worker = supervisor.all_roles
    now = time.monotonic()
    supervisor._readiness.not_ready_since = now - 9.0
    supervisor._look_at_readiness(now)
    assert all(role.is_alive for role in supervisor.all_roles)
    supervisor._readiness.not_ready_since = now - 11.0
    supervisor._look_at_readiness(now)
    assert engine.process is not None
    assert engine.process.wait(DEADLINE_S) == -signal.SIGKILL
    assert frontend.is_alive
    assert supervisor._readiness.not_ready_since is None
    supervisor._keep_alive(now)
    assert worker.kill_at is not None, "its workers go with it"
    supervisor._keep_alive(now + 1.0)
    assert engine.is_alive
    supervisor._readiness.not_ready_since = now - 11.0
    supervisor._look_at_readiness(now)
    assert frontend.process is not None
    assert frontend.process.wait(DEADLINE_S) == -signal.SIGKILL


def test_who_cannot_be_started_is_tried_again_for_ever(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = supervisor.all_roles[2]
    die(worker)
    now = time.monotonic()
    supervisor._keep_alive(now)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", refuse)
        for _ in range(10):
            assert worker.due is not None
            supervisor._keep_alive(worker.due)
        assert worker.due is not None
        assert worker.due - time.monotonic() > 4.0, "ever less often"
        assert not worker.is_given_up
    supervisor._keep_alive(worker.due)
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


def test_deaths_for_which_the_engine_has_found_the_request_do_not_count(supervisor: Supervisor) -> None:
    worker = supervisor.all_roles[2]
    now = time.monotonic()

    def die_and_start() -> None:
        die(worker)
        supervisor._keep_alive(now)
        assert worker.due is not None
        supervisor._keep_alive(worker.due)

    with StatsPageWriter(supervisor._directory.stats_page, RoleName("engine")) as page:
        for number in range(1, 4):
            for _ in range(CONFIG.max_restarts):
                die_and_start()
            page.publish(EngineStats(poisonous_requests=number))
        for _ in range(CONFIG.max_restarts):
            die_and_start()
    with pytest.raises(ServiceUnavailable, match="died too often"):
        die_and_start()


@pytest.mark.parametrize("wanted", ["7", None])
def test_a_user_s_word_on_threads_counts(wanted: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, str]] = []

    def look(command: list[str], *, env: dict[str, str], **options: object) -> None:
        environments.append(env)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.delenv("OMP_NUM_THREADS")
    if wanted is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    monkeypatch.setattr(subprocess, "Popen", look)
    role = Role(RoleName("worker", 0, 0), [], RestartPolicy.from_config(CONFIG), num_threads=3)
    with pytest.raises(OSError, match="unavailable"):
        role.spawn()
    assert environments[0]["OMP_NUM_THREADS"] == (wanted or "3")


def test_a_service_whose_directory_is_another_s_by_now_ends_and_takes_nothing_with_it(
    supervisor: Supervisor, run_dir: Path
) -> None:
    path = supervisor.run_dir
    shutil.rmtree(path)
    path.mkdir(mode=0o700)
    theirs = [path / name for name in ("client.sock", "http.sock", "config.json", "stats.page")]
    for each in theirs:
        each.touch()
    with pytest.raises(ServiceUnavailable, match="not our directory any more"):
        supervisor._look_for_trouble(time.monotonic())
    supervisor.close()
    assert all(each.exists() for each in theirs)


def test_what_cannot_be_served_is_refused_before_anything_is_started(
    run_dir: Path, spawned: list[subprocess.Popen[bytes]]
) -> None:
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    file = run_dir / "file"
    file.touch()
    try:
        for path in (file, Path("/proc/mmcached")):
            with pytest.raises(ConfigError, match="run_dir"):
                Supervisor(path, CONFIG)
        with pytest.raises(SegmentError, match="MiB"):
            Supervisor(run_dir / "s", ServiceConfig(store_gb=4096.0))
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert spawned == []


# ---- processes without a descriptor of their own


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_without_pidfds_is_done_without(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with subprocess.Popen(SLEEP) as process:
        assert open_pidfd(process.pid) == -1
        assert not has_ended(process.pid, -1, 0.01)
        terminate(process.pid, -1)
        assert has_ended(process.pid, -1, DEADLINE_S)


def test_a_process_that_has_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    with pytest.raises(ProcessLookupError):
        open_pidfd(process.pid)
    terminate(process.pid, -1)
