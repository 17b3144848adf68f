"""The processes of one service: started together, restarted one by one when they die, ended in order.

    frontend
    second level                      if configured; its death affects no other role
    engine 0, worker 0.0 … 0.N-1      a group: when the engine dies, its workers end by themselves, or are killed
    engine 1, worker 1.0 … 1.N-1      one group per engine; without engines the frontend alone is a store

A dead role is restarted after a backoff, and given up when it dies too often; a worker's death for which its engine has
found the request does not count. The second level is never given up, and no other role waits for it. A group that lives
but serves nothing for long is killed. If no group serves anything, the frontend is killed too the second time (at once
where it is alone). A process that cannot be created is retried forever.
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

from mmcached.cli.serve.engine_group import EngineGroup
from mmcached.cli.serve.restarts import RestartPolicy
from mmcached.cli.serve.roles import Role
from mmcached.cli.watch.readiness_watch import ReadinessWatch
from mmcached.shm.stats.page import StatsPageReader
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.paths import RunDir
from mmcached.wire.process.signals import StopFlag
from mmcached.wire.stats import RoleName

log = structlog.get_logger("mmcached.supervisor")

TERMINATE_GRACE_S = 5.0
POLL_INTERVAL_S = 0.25


class RoleGroup(Closeable):
    """The roles of one service. Use it in the main thread: the parent-death signal follows the thread that spawns.

    Args:
        run_dir: Run directory as the roles are given it.
        directory: The same, as this process reaches it.
        page: Has the number of requests that an engine has found to kill workers.
        readiness: Has the time since when nothing is served; reset after a kill.

    Attributes:
        second_level: The role of the second level; at most one.
        engines: By index; empty without workers.
    """

    def __init__(
        self, config: ServiceConfig, run_dir: Path, directory: RunDir, page: StatsPageReader, readiness: ReadinessWatch
    ) -> None:
        self._config = config
        self._run_dir = run_dir
        self._directory = directory
        self._page = page
        self._readiness = readiness
        self._was_restarted = False
        self._selector = selectors.DefaultSelector()
        self.frontend = self._make_role(RoleName("frontend"), "frontend")
        self.second_level = (
            [self._make_role(RoleName("second_level"), "second-level", gives_up=False)] if config.store_l2 else []
        )
        self.engines = [self._make_group(index) for index in range(config.num_engines)]
        self.roles = [self.frontend, *self.second_level, *(role for group in self.engines for role in group.roles)]

    def start(self) -> None:
        for role in self.roles:
            self._spawn(role)

    @property
    def is_at_rest(self) -> bool:
        """Whether no role is to be started or killed."""
        return all(role.due is None and role.kill_at is None for role in self.roles)

    def wake_on(self, source: StopFlag) -> None:
        """End waits also when `source` becomes readable."""
        self._selector.register(source, selectors.EVENT_READ)

    def wait(self, timeout_s: float) -> None:
        """Return when a role has died, or after `timeout_s`."""
        self._selector.select(timeout_s)

    def require(self, now: float) -> None:
        """Retry failed starts during the service's start; of dead roles only the second level is restarted.

        Raises:
            ServiceUnavailable: Another role has died.
        """
        for role in self.roles:
            if role.due is not None and role.due <= now:
                self._spawn(role)
            elif role.due is None and role in self.second_level and not role.is_alive:
                self._reap(role, now)
            elif role.due is None and role.process is not None and not role.is_alive:
                status = role.process.returncode
                raise ServiceUnavailable(
                    f"{role.name} ended with status {status} before the service was ready; see its log"
                )

    def keep_alive(self, now: float) -> None:
        """Reap the dead, start the due roles, kill overdue ones; ServiceUnavailable if a role is given up."""
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
        """Kill live engines that have served nothing for long; if these are all, the second time the frontend too."""
        readiness, long_ago = self._readiness, now - self._config.limits.not_ready_timeout_s
        if readiness.is_ready:
            self._was_restarted = False
        if not self.frontend.is_alive:
            return
        idle = [group for group in self.engines if readiness.engine_not_ready_since.get(group.index, now) <= long_ago]
        victims = [group.engine for group in idle if group.are_all_alive]
        is_all = readiness.not_ready_since is not None and readiness.not_ready_since <= long_ago
        if is_all and len(victims) == len(self.engines):
            victims += [self.frontend] if self._was_restarted or not victims else []
            self._was_restarted = True
        if not victims:
            return
        readiness.forgive(group.index for group in self.engines if group.engine in victims)
        names = [str(role.name) for role in victims]
        log.error("all processes live, but no request is served: killed", names=names, reason=readiness.reason)
        for role in victims:
            role.kill()

    def stop(self, drain_timeout_s: float, *, is_hurried: Callable[[], bool]) -> None:
        """End all roles in order: the frontend first, so that it can drain."""
        self._end([self.frontend], drain_timeout_s + TERMINATE_GRACE_S, is_hurried)
        self._end([group.engine for group in self.engines], TERMINATE_GRACE_S, is_hurried)
        self._end([worker for group in self.engines for worker in group.workers], TERMINATE_GRACE_S, is_hurried)
        self._end(self.second_level, TERMINATE_GRACE_S, is_hurried)

    def close(self) -> None:
        self._selector.close()

    def _make_group(self, index: int) -> EngineGroup:
        of_engine = ("--index", str(index))
        workers = [
            self._make_role(RoleName("worker", index, rank), "worker", *of_engine, "--rank", str(rank))
            for rank in range(self._config.world_size)
        ]
        return EngineGroup(self._make_role(RoleName("engine", index), "engine", *of_engine), workers)

    def _make_role(self, name: RoleName, *arguments: str, gives_up: bool = True) -> Role:
        num_workers = self._config.num_engines * self._config.world_size
        num_threads = max(1, len(os.sched_getaffinity(0)) // max(1, num_workers))
        command = [*arguments, "--run-dir", str(self._run_dir)]
        policy = RestartPolicy.from_config(self._config, gives_up=gives_up)
        return Role(name, command, policy, num_threads=num_threads)

    def _spawn(self, role: Role) -> None:
        """Start a role; if the system lacks a descriptor, process or memory for it, retry later."""
        group = self._group_of(role)
        role.num_engine_deaths = group.num_deaths if group is not None else 0
        try:
            if not self._directory.config.exists():
                self._config.save(self._directory.config)
            self._directory.clients.mkdir(mode=0o700, exist_ok=True)
            role.spawn()
        except OSError as error:
            delay = role.start_failed(time.monotonic())
            log.error("role cannot be started: retried", name=str(role.name), reason=str(error), in_s=delay)
            return
        if role.pidfd >= 0:
            self._selector.register(role.pidfd, selectors.EVENT_READ)

    def _reap(self, role: Role, now: float) -> None:
        status = None if role.process is None else role.process.returncode
        if role.pidfd >= 0:
            self._selector.unregister(role.pidfd)
        group = self._group_of(role)
        if group is not None:
            group.forgive_blamed_deaths(self._page.read())
        delay = role.reap(now, is_excused=group is not None and role.num_engine_deaths != group.num_deaths)
        if delay is None:
            log.error("role died too often: given up", name=str(role.name), status=status)
            raise ServiceUnavailable(f"{role.name} died too often, the last time with status {status}; see its log")
        log.warning("role died: restarted", name=str(role.name), status=status, in_s=delay)
        if role in self.second_level:
            return
        touched = self.engines if group is None else [group]
        self._readiness.forgive(each.index for each in touched)
        if group is not None and role is group.engine:
            group.engine_died(now)

    def _group_of(self, role: Role) -> EngineGroup | None:
        return self.engines[role.name.engine] if role.name.kind in ("engine", "worker") else None

    def _end(self, roles: Sequence[Role], grace_s: float, is_hurried: Callable[[], bool]) -> None:
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
