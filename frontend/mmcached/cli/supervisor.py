"""The parent of all roles: starts them, restarts what dies, ends them in order. Carries no data, imports no torch.

    Supervisor --+-- frontend
                 +-- engine 0          a group: when the engine dies, its workers end by themselves, or are killed
                 +-- worker 0 … N-1

Every child asks the kernel to die with this process (see `mmcached.wire.death`), so a SIGKILL here leaves no orphan;
what it leaves in /dev/shm and in the run directory the next start removes. A role that dies is started again after a
backoff, and given up, with exit status 1, when it dies too often. Before the service was ready for the first time
nothing is tried twice. SIGTERM drains; a second one ends everything at once.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from mmcached.cli.admin import AdminServer
from mmcached.cli.probe import probe
from mmcached.cli.restarts import RestartPolicy
from mmcached.cli.roles import Role
from mmcached.cli.service_status import RoleView
from mmcached.shm import sweep
from mmcached.shm.lock_file import LockFile, remove_if_free
from mmcached.shm.stats_page import StatsPage, StatsPageReader
from mmcached.shm.stats_publisher import StatsPublisher
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, ServiceUnavailable
from mmcached.wire.paths import RunDir
from mmcached.wire.signals import StopFlag
from mmcached.wire.stats import RoleName, SupervisorStats

log = structlog.get_logger("mmcached.supervisor")

TERMINATE_GRACE_S = 5.0
ORPHAN_GRACE_S = 2.0
"""How long a worker may take to notice that its engine is dead, before it is killed."""
WAKE_INTERVAL_S = 0.25


class Supervisor:
    """One service in one run directory.

    Must be made in the main thread: the parent-death signal follows the thread that spawns.

    Raises:
        ServiceUnavailable: another supervisor holds this run directory.
        ConfigError: the directory is not private, or its path too long.
    """

    def __init__(self, run_dir: Path, config: ServiceConfig) -> None:
        self.config = config
        self._directory = RunDir(run_dir.absolute())
        self._directory.create()
        self._was_ready = False
        with ExitStack() as stack:
            lock = self._take_lock()
            stack.callback(lock.close)
            self._remove_leftovers()
            stack.callback(self._remove_leftovers)
            config.save(self._directory.config)
            self._stop = StopFlag()
            self._selector = stack.enter_context(selectors.DefaultSelector())
            stack.enter_context(StatsPage.create(self._directory.stats_page))
            self._page = stack.enter_context(StatsPublisher(self._directory.stats_page, RoleName("supervisor")))
            self._frontend = self._make_role(RoleName("frontend"), "frontend")
            self._engine = self._make_role(RoleName("engine"), "engine")
            self._workers = [
                self._make_role(RoleName("worker", 0, rank), "worker", "--rank", str(rank))
                for rank in range(config.world_size)
            ]
            reader = stack.enter_context(StatsPageReader(self._directory.stats_page))
            self._admin = stack.enter_context(AdminServer(self, reader))
            self._closing = stack.pop_all()

    @property
    def run_dir(self) -> Path:
        return self._directory.path

    @property
    def is_draining(self) -> bool:
        return self._stop.is_set

    @property
    def all_roles(self) -> list[Role]:
        return [self._frontend, self._engine, *self._workers]

    def roles(self) -> list[RoleView]:
        """Return what all roles look like now. Called from the HTTP thread: looks, and changes nothing."""
        return [role.view(was_ready=self._was_ready, is_draining=self.is_draining) for role in self.all_roles]

    def run(self) -> int:
        """Start all roles, announce readiness on stdout, and keep them alive until told to stop.

        Returns:
            0 after an orderly stop; 1 if the service did not become ready, or a role was given up.
        """
        for role in self.all_roles:
            self._spawn(role)
        if not self._wait_until_ready():
            return 0 if self._stop.is_set else 1
        self._was_ready = True
        sys.stdout.write(f"mmcached ready: {self._directory.path} (pid {os.getpid()})\n")
        sys.stdout.flush()
        while not self._stop.is_set:
            self._wait_for_event()
            if not self._keep_alive(time.monotonic()):
                return 1
        return 0

    def close(self) -> None:
        """End all roles in order (frontend first, so that it can drain), remove sockets, let the directory go."""
        self._terminate([self._frontend], self.config.drain_timeout_s + TERMINATE_GRACE_S)
        self._terminate([self._engine], TERMINATE_GRACE_S)
        self._terminate(self._workers, TERMINATE_GRACE_S)
        self._closing.close()

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

    def _remove_leftovers(self) -> None:
        """Remove what the dead have left: a killed frontend its ring, a service its sockets, a client its lock.

        A living client keeps its lock, whoever serves it next.
        """
        self._directory.remove_sockets()
        for name in sweep():
            log.info("removed what a dead process left behind", name=name)
        for path in self._directory.clients.glob("*.lock"):
            remove_if_free(path)

    def _make_role(self, name: RoleName, *arguments: str) -> Role:
        num_threads = max(1, (os.cpu_count() or 1) // self.config.world_size)
        command = [*arguments, "--run-dir", str(self._directory.path)]
        return Role(name, command, RestartPolicy.from_config(self.config), num_threads=num_threads)

    def _spawn(self, role: Role) -> None:
        role.spawn()
        self._selector.register(role.pidfd, selectors.EVENT_READ)

    def _wait_until_ready(self) -> bool:
        deadline = time.monotonic() + self.config.start_timeout_s
        reason = "not asked yet"
        while time.monotonic() < deadline and not self._stop.is_set:
            dead = next((role for role in self.all_roles if not role.is_alive), None)
            if dead is not None and dead.process is not None:
                status = dead.process.returncode
                log.error("role ended before the service was ready", name=str(dead.name), status=status)
                return False
            try:
                probe(self._directory.path)
            except MmcachedError as error:
                reason = str(error)
                self._wait_for_event()
            else:
                return True
        log.error("not ready in time", timeout_s=self.config.start_timeout_s, reason=reason)
        return False

    # ---- keeping alive

    def _wait_for_event(self) -> None:
        """Return when a child has died, or after a short while, so that signals and due times are noticed."""
        self._selector.select(WAKE_INTERVAL_S)
        self._page.publish_if_due(self._stats)

    def _stats(self) -> SupervisorStats:
        restarts = sum(role.num_restarts for role in self.all_roles)
        return SupervisorStats(restarts=restarts, draining=int(self.is_draining))

    def _keep_alive(self, now: float) -> bool:
        """Reap the dead, start what is due, kill what should be gone; return False when a role is given up."""
        for role in self.all_roles:
            if role.due is None and not role.is_alive and not self._reap(role, now):
                return False
            if role.kill_at is not None and role.kill_at <= now:
                log.warning("role did not end with its engine: killed", name=str(role.name))
                role.kill()
                role.kill_at = None
            if role.due is not None and role.due <= now:
                self._spawn(role)
        return True

    def _reap(self, role: Role, now: float) -> bool:
        status = None if role.process is None else role.process.returncode
        if role.pidfd >= 0:
            self._selector.unregister(role.pidfd)
        delay = role.reap(now)
        if delay is None:
            log.error("role died once too often: given up", name=str(role.name), status=status)
            return False
        log.warning("role died: started again", name=str(role.name), status=status, in_s=delay)
        if role is self._engine:
            # A hung worker holds its byte of the row: until it is dead, what it reads stays pinned.
            for worker in self._workers:
                worker.kill_at = now + ORPHAN_GRACE_S if worker.is_alive else None
        return True

    # ---- stopping

    def _terminate(self, roles: Sequence[Role], grace_s: float) -> None:
        """SIGTERM, wait, SIGKILL what is left. A second signal to this process cuts the wait short."""
        for role in roles:
            role.terminate()
        deadline = time.monotonic() + grace_s
        while any(role.is_alive for role in roles):
            if time.monotonic() > deadline or self._stop.num_signals > 1:
                break
            living = next((role.process for role in roles if role.is_alive), None)
            if living is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    living.wait(WAKE_INTERVAL_S)
        for role in roles:
            if role.is_alive:
                log.warning("role did not end in time: killed", name=str(role.name))
                role.kill()
            if role.pidfd >= 0:
                self._selector.unregister(role.pidfd)
            role.close()
