"""The processes of one service: started together, started again one by one when they die, ended in order.

    frontend
    engine 0          a group: when the engine dies, its workers end by themselves, or are killed
    worker 0 … N-1    none, and no engine: the frontend alone is a store

A role that dies is started again after a backoff, and given up when it dies too often; a worker's death for which the
engine has found the request does not count. If all live and nothing goes through for long, engine and workers are
killed, the next time the frontend too (at once where it is alone). A process that cannot be made is tried again for
ever.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from mmcached.cli.serve.restarts import RestartPolicy
from mmcached.cli.serve.roles import Role
from mmcached.cli.watch.readiness_watch import ReadinessWatch
from mmcached.shm.stats.page import StatsPageReader
from mmcached.shm.stats.service import stats_of
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import EngineStats, RoleName

log = structlog.get_logger("mmcached.supervisor")

TERMINATE_GRACE_S = 5.0
ORPHAN_GRACE_S = 2.0
"""How long a worker may take to notice that its engine is dead, before it is killed."""
POLL_INTERVAL_S = 0.25


class RoleGroup(Closeable):
    """The roles of one service. Use it in the main thread: the parent-death signal follows the thread that spawns.

    Args:
        run_dir: as the roles are told it.
        directory: the same, as this process reaches it.
        page: says for how many requests the engine has found that they kill workers.
        readiness: says since when nothing goes through; forgiven when something was done about it.

    Attributes:
        roles: in the order in which they are started; without workers the engine is none of them.
    """

    def __init__(
        self, config: ServiceConfig, run_dir: Path, directory: RunDir, page: StatsPageReader, readiness: ReadinessWatch
    ) -> None:
        self._config = config
        self._run_dir = run_dir
        self._directory = directory
        self._page = page
        self._readiness = readiness
        self._num_engine_deaths = 0
        self._num_poisonous_requests = 0
        self._was_restarted = False
        self._selector = selectors.DefaultSelector()
        self.frontend = self._make_role(RoleName("frontend"), "frontend")
        self.engine = self._make_role(RoleName("engine"), "engine")
        self.workers = [
            self._make_role(RoleName("worker", 0, rank), "worker", "--rank", str(rank))
            for rank in range(config.world_size)
        ]
        self.roles = [self.frontend, self.engine, *self.workers] if config.has_workers else [self.frontend]

    def start(self) -> None:
        """Start all roles."""
        for role in self.roles:
            self._spawn(role)

    def wait(self, timeout_s: float) -> None:
        """Return when a role has died, or after `timeout_s`."""
        self._selector.select(timeout_s)

    def require(self, now: float) -> None:
        """Start what could not be started yet; nothing that died is tried twice.

        Raises:
            ServiceUnavailable: a role has died.
        """
        for role in self.roles:
            if role.due is not None and role.due <= now:
                self._spawn(role)
            elif role.process is not None and not role.is_alive:
                status = role.process.returncode
                raise ServiceUnavailable(
                    f"{role.name} ended with status {status} before the service was ready; see its log"
                )

    def keep_alive(self, now: float) -> None:
        """Reap the dead, start what is due, kill what should be gone.

        Raises:
            ServiceUnavailable: a role is given up.
        """
        for role in self.roles:
            if role.due is None and not role.is_alive:
                self._reap(role, now)
            if role.kill_at is not None and role.kill_at <= now:
                log.warning("role did not end with its engine: killed", name=str(role.name))
                role.kill()
                role.kill_at = None
            if role.due is not None and role.due <= now:
                self._spawn(role)

    def restart_if_stuck(self, now: float) -> None:
        """Kill the engine, and the second time the frontend too, if all live and nothing has gone through for long."""
        since = self._readiness.not_ready_since
        if self._readiness.is_ready:
            self._was_restarted = False
        if since is None or now - since < self._config.limits.not_ready_timeout_s:
            return
        if not all(role.is_alive for role in self.roles):
            return
        victims = [self.frontend, self.engine] if self._was_restarted else [self.engine]
        victims = [role for role in victims if role in self.roles] or [self.frontend]
        self._was_restarted = True
        self._readiness.forgive()
        names = [str(role.name) for role in victims]
        log.error("all live, and nothing goes through: killed", names=names, reason=self._readiness.reason)
        for role in victims:
            role.kill()

    def stop(self, drain_timeout_s: float, *, is_hurried: Callable[[], bool]) -> None:
        """End all roles in order: the frontend first, so that it can drain.

        Args:
            is_hurried: whether to wait for nobody any more.
        """
        self._end([self.frontend], drain_timeout_s + TERMINATE_GRACE_S, is_hurried)
        self._end([self.engine], TERMINATE_GRACE_S, is_hurried)
        self._end(self.workers, TERMINATE_GRACE_S, is_hurried)

    def close(self) -> None:
        """Let go of the processes' descriptors. A second call does nothing."""
        self._selector.close()

    def _make_role(self, name: RoleName, *arguments: str) -> Role:
        num_threads = max(1, len(os.sched_getaffinity(0)) // max(1, self._config.world_size))
        command = [*arguments, "--run-dir", str(self._run_dir)]
        return Role(name, command, RestartPolicy.from_config(self._config), num_threads=num_threads)

    def _spawn(self, role: Role) -> None:
        """Start a role; if the system has no descriptor, process or memory for it now, try again later."""
        role.num_engine_deaths = self._num_engine_deaths
        try:
            if not self._directory.config.exists():
                self._config.save(self._directory.config)
            self._directory.clients.mkdir(mode=0o700, exist_ok=True)
            role.spawn()
        except OSError as error:
            delay = role.start_failed(time.monotonic())
            log.error("role cannot be started: tried again", name=str(role.name), reason=str(error), in_s=delay)
            return
        if role.pidfd >= 0:
            self._selector.register(role.pidfd, selectors.EVENT_READ)

    def _reap(self, role: Role, now: float) -> None:
        status = None if role.process is None else role.process.returncode
        if role.pidfd >= 0:
            self._selector.unregister(role.pidfd)
        self._forgive_blamed_deaths()
        delay = role.reap(now, is_excused=role.num_engine_deaths != self._num_engine_deaths)
        if delay is None:
            log.error("role died once too often: given up", name=str(role.name), status=status)
            raise ServiceUnavailable(f"{role.name} died too often, the last time with status {status}; see its log")
        log.warning("role died: started again", name=str(role.name), status=status, in_s=delay)
        self._readiness.forgive()
        if role is self.engine:
            self._num_engine_deaths += 1
            # A hung worker holds its byte of the row: until it is dead, what it reads stays pinned.
            for worker in self.workers:
                worker.kill_at = now + ORPHAN_GRACE_S if worker.is_alive else None

    def _forgive_blamed_deaths(self) -> None:
        """Count no worker's deaths for which the engine has found the request: different ones may come all day."""
        num_found = stats_of(self._page.read(), self.engine.name, EngineStats).poisonous_requests
        if num_found > self._num_poisonous_requests:
            for worker in self.workers:
                worker.forgive()
        self._num_poisonous_requests = num_found

    def _end(self, roles: Sequence[Role], grace_s: float, is_hurried: Callable[[], bool]) -> None:
        """SIGTERM, wait, SIGKILL what is left."""
        for role in roles:
            role.terminate()
        deadline = time.monotonic() + grace_s
        while any(role.is_alive for role in roles):
            if time.monotonic() > deadline or is_hurried():
                break
            living = next((role.process for role in roles if role.is_alive), None)
            if living is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    living.wait(POLL_INTERVAL_S)
        for role in roles:
            if role.is_alive:
                log.warning("role did not end in time: killed", name=str(role.name))
                role.kill()
            if role.pidfd >= 0:
                self._selector.unregister(role.pidfd)
            role.close()
