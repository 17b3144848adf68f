"""A service that is stopped, tidied away and starved: it comes back by itself, and nobody takes its place."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.paths import RunDir
from tests.integration.processes import DEADLINE_S, eventually, is_alive, retryably, role_pids, small_config


def test_a_service_in_trouble_comes_back(run_dir: Path, tmp_path: Path) -> None:
    """One service for all of it: each start takes seconds."""
    config = small_config(
        world_size=1,
        restart_backoff_s=0.05,
        max_restarts=100,
        step_timeout_s=3.0,
        limits=LimitsConfig(silence_timeout_s=2.0),
    )
    log = tmp_path / "log"
    with ChildService(run_dir / "s", config, tmp_path / "config.json", log_file=log) as service:
        for kind in ("worker", "engine", "frontend"):
            _stop_a_role(service, kind)
        _tidy_the_directory(service)
        _start_a_second_service(service)
        _take_its_descriptors(service, log)
    assert "is silent: killed" in log.read_text()


def _stop_a_role(service: ChildService, kind: str) -> None:
    """It lives, and would do nothing for ever."""
    (victim,) = role_pids(service.process.pid)[kind]
    os.kill(victim, signal.SIGSTOP)
    _wait_for_another(service, kind, victim)


def _wait_for_another(service: ChildService, kind: str, victim: int) -> None:
    eventually(lambda: is_alive(victim), lambda lives: not lives, f"the end of the {kind}")
    eventually(lambda: role_pids(service.process.pid)[kind], lambda pids: len(pids) == 1, f"another {kind}")
    eventually(lambda: _is_answered(service), bool, "an answer")


def _is_answered(service: ChildService) -> bool:
    with Client(service.run_dir) as client:
        prompt = "as if nothing had been"
        return retryably(partial(client.generate, prompt, max_tokens=1, timeout_s=5.0)) is not None


def _tidy_the_directory(service: ChildService) -> None:
    """Roles start again all the same."""
    directory = RunDir(service.run_dir)
    directory.config.unlink()
    shutil.rmtree(directory.clients)  # with the locks of the engine and its workers
    (victim,) = role_pids(service.process.pid)["engine"]
    os.kill(victim, signal.SIGKILL)
    _wait_for_another(service, "engine", victim)


def _start_a_second_service(service: ChildService) -> None:
    """It is refused, though no file says that somebody is there."""
    socket = RunDir(service.run_dir).http_socket
    socket.unlink()
    command = [sys.executable, "-m", "mmcached", "serve", "--run-dir", str(service.run_dir), "--device", "cpu"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert second.returncode == 1
    assert "a service runs in" in second.stderr
    eventually(lambda: _is_answered(service), bool, "an answer")
    eventually(socket.exists, bool, "the socket")


def _take_its_descriptors(service: ChildService, log: Path) -> None:
    """A role that cannot be started is tried again, and ends nobody."""
    pid = service.process.pid
    (victim,) = role_pids(pid)["worker"]
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    def has_failed_start() -> bool:
        # Again and again: descriptors of a connection that was open may be free now, and a worker may have started.
        in_use = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (in_use - 2, hard))
        for worker in role_pids(pid)["worker"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        return "cannot be started" in log.read_text()

    try:
        eventually(has_failed_start, bool, "a failed start")
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    _wait_for_another(service, "worker", victim)
