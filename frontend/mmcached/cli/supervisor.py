"""The parent of all roles: starts them, says when they are ready, ends them. Carries no data, imports no torch.

    Supervisor --+-- frontend
                 +-- engine 0
                 +-- worker 0 … N-1

Every child asks the kernel to die with this process (see `mmcached.wire.death`), so a SIGKILL here leaves no orphan;
what it leaves in /dev/shm and in the run directory the next start removes. A child that dies takes the service down
with exit status 1: nothing is restarted yet. SIGTERM drains; a second one ends everything at once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mmcached.cli.probe import probe
from mmcached.shm.lock_file import LockFile
from mmcached.wire.config import ServiceConfig
from mmcached.wire.death import environment_for_children
from mmcached.wire.errors import MmcachedError, ServiceUnavailable
from mmcached.wire.paths import RunDir
from mmcached.wire.signals import StopFlag

logger = logging.getLogger("mmcached.supervisor")

TERMINATE_GRACE_S = 5.0
WAKE_INTERVAL_S = 0.25


@dataclass(slots=True)
class Child:
    """A role's process; `pidfd` becomes readable when it dies."""

    name: str
    process: subprocess.Popen[bytes]
    pidfd: int

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None


class Supervisor:
    """One service in one run directory.

    Must be made in the main thread: the parent-death signal follows the thread that spawns.

    Raises:
        ServiceUnavailable: another supervisor holds this run directory.
        ConfigError: the directory is not private, or its path too long.
    """

    def __init__(self, run_dir: Path, config: ServiceConfig) -> None:
        self._config = config
        self._directory = RunDir(run_dir.absolute())
        self._directory.create()
        self._lock = self._take_lock()
        self._selector = selectors.DefaultSelector()
        self._children: list[Child] = []
        self._stop = StopFlag()
        self._directory.remove_leftovers()
        config.save(self._directory.config)

    def run(self) -> int:
        """Start all roles, announce readiness on stdout, and watch until told to stop or a role dies.

        Returns:
            0 after an orderly stop, 1 if a role died or the service did not become ready.
        """
        self._spawn_all()
        if not self._wait_until_ready():
            return 0 if self._stop.is_set else 1
        sys.stdout.write(f"mmcached ready: {self._directory.path} (pid {os.getpid()})\n")
        sys.stdout.flush()
        while not self._stop.is_set:
            self._wait_for_event()
            dead = self._first_dead()
            if dead is not None:
                logger.error("%s ended with status %s; stopping", dead.name, dead.process.returncode)
                return 1
        return 0

    def close(self) -> None:
        """End all roles in order (frontend first, so that it can drain), remove sockets, let the directory go."""
        self._stop_frontend()
        self._stop_rest()
        for child in self._children:
            self._selector.unregister(child.pidfd)
            os.close(child.pidfd)
        self._selector.close()
        self._children.clear()
        self._directory.remove_leftovers()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- starting

    def _take_lock(self) -> LockFile:
        path = self._directory.supervisor_lock
        try:
            lock = LockFile(path)
        except BlockingIOError:
            holder = path.read_text(errors="replace").strip() or "unknown"
            raise ServiceUnavailable(f"a service runs in {self._directory.path} already (pid {holder})") from None
        lock.write(f"{os.getpid()}\n")
        return lock

    def _spawn_all(self) -> None:
        self._spawn("frontend", "frontend")
        self._spawn("engine 0", "engine")
        for rank in range(self._config.world_size):
            self._spawn(f"worker {rank}", "worker", "--rank", str(rank))

    def _spawn(self, name: str, *arguments: str) -> None:
        cores = os.cpu_count() or 1
        environment = environment_for_children()
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // self._config.world_size)))
        process = subprocess.Popen(
            [sys.executable, "-m", "mmcached", *arguments, "--run-dir", str(self._directory.path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            # stdout carries the ready line alone; a role that prints must not be taken for it.
            stdout=sys.stderr,
            # Ctrl-C goes to the foreground group: the children must hear it from here, in order.
            process_group=0,
        )
        pidfd = os.pidfd_open(process.pid)
        self._selector.register(pidfd, selectors.EVENT_READ)
        self._children.append(Child(name, process, pidfd))

    def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + self._config.start_timeout_s
        reason = "not asked yet"
        while time.monotonic() < deadline and not self._stop.is_set:
            dead = self._first_dead()
            if dead is not None:
                logger.error("%s ended with status %s before the service was ready", dead.name, dead.process.returncode)
                return False
            try:
                probe(self._directory.path)
            except MmcachedError as error:
                reason = str(error)
                self._wait_for_event()
            else:
                return True
        logger.error("not ready after %s s: %s", self._config.start_timeout_s, reason)
        return False

    # ---- watching and stopping

    def _wait_for_event(self) -> None:
        """Return when a child has died, or after a short while, so that signals are noticed."""
        self._selector.select(WAKE_INTERVAL_S)

    def _first_dead(self) -> Child | None:
        return next((child for child in self._children if not child.is_alive), None)

    def _stop_frontend(self) -> None:
        frontend = [child for child in self._children if child.name == "frontend"]
        self._terminate(frontend, self._config.drain_timeout_s + TERMINATE_GRACE_S)

    def _stop_rest(self) -> None:
        engines = [child for child in self._children if child.name.startswith("engine")]
        self._terminate(engines, TERMINATE_GRACE_S)
        self._terminate(self._children, TERMINATE_GRACE_S)

    def _terminate(self, children: list[Child], grace_s: float) -> None:
        """SIGTERM, wait, SIGKILL what is left. A second signal to this process cuts the wait short."""
        for child in children:
            if child.is_alive:
                child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while any(child.is_alive for child in children):
            if time.monotonic() > deadline or self._stop.num_signals > 1:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                next(child for child in children if child.is_alive).process.wait(WAKE_INTERVAL_S)
        for child in children:
            if child.is_alive:
                logger.warning("%s did not end in time: killed", child.name)
                child.process.kill()
            child.process.wait()
