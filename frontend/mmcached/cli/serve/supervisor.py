"""The parent of all roles: starts them, restarts what dies, ends them in order. Carries no data, imports no torch.

    Supervisor --+-- frontend
                 +-- engine 0          a group: when the engine dies, its workers end by themselves, or are killed
                 +-- worker 0 … N-1

Every child asks the kernel to die with this process (see `wire.process.death`), so a SIGKILL here leaves no orphan;
what it leaves in /dev/shm and in the run directory the next start removes. A role that dies is started again after a
backoff, and given up, with exit status 1, when it dies too often; deaths of workers for which the engine has found the
request do not count. One that lives and is silent is killed (`watchdog`);
if all live and nothing goes through for long (`readiness_watch`), the group is killed, and the next time the frontend
too. A process that cannot be made, for want of descriptors or memory, is tried again for ever. Before the service was
ready for the first time nothing that died is tried twice. SIGTERM drains; a second one ends everything at once.

Everything that it makes or removes in the run directory it reaches through its own descriptor (`seat`): if another
directory has that name by now, it is another service's.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import structlog

from mmcached.cli.serve.first_request import first_request
from mmcached.cli.serve.restarts import RestartPolicy
from mmcached.cli.serve.roles import Role
from mmcached.cli.serve.seat import Seat
from mmcached.cli.serve.shm_room import require_room_for
from mmcached.cli.serve.watchdog import LOOK_INTERVAL_S, Watchdog
from mmcached.cli.watch.http_pages import AdminServer
from mmcached.cli.watch.readiness_watch import ReadinessWatch
from mmcached.cli.watch.service_status import ServiceView
from mmcached.shm import sweep
from mmcached.shm.files.lock_file import remove_if_free
from mmcached.shm.stats.page import StatsPage, StatsPageReader
from mmcached.shm.stats.publisher import StatsPublisher
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, ServiceUnavailable
from mmcached.wire.paths import RunDir
from mmcached.wire.process.signals import StopFlag
from mmcached.wire.stats import EngineStats, RoleName, SupervisorStats

log = structlog.get_logger("mmcached.supervisor")

TERMINATE_GRACE_S = 5.0
ORPHAN_GRACE_S = 2.0
"""How long a worker may take to notice that its engine is dead, before it is killed."""
WAKE_INTERVAL_S = 0.25
TOUCH_INTERVAL_S = 3600.0


class Supervisor(Closeable):
    """One service in one run directory.

    Must be made in the main thread: the parent-death signal follows the thread that spawns.

    Args:
        stop: what ends it; by default a flag of its own.
        tell: hears in words how the start goes.
    Raises:
        ServiceUnavailable: another supervisor holds this run directory.
        ConfigError: the directory is not private, its path too long, or the HTTP address cannot be bound.
        SegmentError: there is no room for the rings.
    """

    def __init__(
        self,
        run_dir: Path,
        config: ServiceConfig,
        *,
        stop: StopFlag | None = None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.config = config
        self._tell = tell
        named = RunDir(run_dir.absolute())
        named.create()
        self.run_dir = named.path
        self._was_ready = False
        self._num_engine_deaths = 0
        self._num_poisonous_requests = 0
        self._next_look = self._next_touch = 0.0
        self._was_group_restarted = False
        with ExitStack() as stack:
            self._stop = stop or StopFlag()
            self._seat = stack.enter_context(Seat(named))
            self._directory = self._seat.directory
            self._remove_leftovers()
            stack.callback(self._remove_leftovers)
            require_room_for(config)
            config.save(self._directory.config)
            self._selector = stack.enter_context(selectors.DefaultSelector())
            stack.enter_context(StatsPage.create(self._directory.stats_page))
            self._page = stack.enter_context(StatsPublisher(self._directory.stats_page, RoleName("supervisor")))
            self._frontend = self._make_role(RoleName("frontend"), "frontend")
            self._engine = self._make_role(RoleName("engine"), "engine")
            self._workers = [
                self._make_role(RoleName("worker", 0, rank), "worker", "--rank", str(rank))
                for rank in range(config.world_size)
            ]
            self._reader = stack.enter_context(StatsPageReader(self._directory.stats_page))
            self._watchdog = Watchdog(config)
            self._readiness = stack.enter_context(ReadinessWatch(self._directory, config))
            self._admin = stack.enter_context(AdminServer(self.look, self._reader, directory=self._directory))
            self._closing = stack.pop_all()

    @property
    def is_draining(self) -> bool:
        return self._stop.is_set

    @property
    def all_roles(self) -> list[Role]:
        return [self._frontend, self._engine, *self._workers]

    def look(self) -> ServiceView:
        """Return what is known of all roles now. Called from the HTTP thread: changes nothing."""
        is_draining = self.is_draining
        roles = [role.status(was_ready=self._was_ready, is_draining=is_draining) for role in self.all_roles]
        return ServiceView(self.run_dir, self.config, is_draining, roles)

    def run(self) -> int:
        """Start all roles, announce readiness on stdout, and keep them alive until told to stop.

        Returns:
            0 after an orderly stop, also during the start.
        Raises:
            ServiceUnavailable: it did not become ready, a role was given up, or the run directory is gone.
        """
        self._tell(f"starting frontend, engine and {len(self._workers)} worker(s) in {self.run_dir}")
        for role in self.all_roles:
            self._spawn(role)
        if not self._wait_until_ready():
            return 0
        self._was_ready = True
        address = f", {self._admin.url}" if self._admin.url else ""
        sys.stdout.write(f"mmcached ready: {self.run_dir} (pid {os.getpid()}){address}\n")
        sys.stdout.flush()
        while not self._stop.is_set:
            self._wait_for_event()
            now = time.monotonic()
            self._keep_alive(now)
            self._look_for_trouble(now)
        return 0

    def close(self) -> None:
        """End all roles in order (frontend first, so that it can drain), remove sockets, let the directory go."""
        self._terminate([self._frontend], self.config.drain_timeout_s + TERMINATE_GRACE_S)
        self._terminate([self._engine], TERMINATE_GRACE_S)
        self._terminate(self._workers, TERMINATE_GRACE_S)
        self._closing.close()

    # ---- starting

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
        num_threads = max(1, len(os.sched_getaffinity(0)) // self.config.world_size)
        command = [*arguments, "--run-dir", str(self.run_dir)]
        return Role(name, command, RestartPolicy.from_config(self.config), num_threads=num_threads)

    def _spawn(self, role: Role) -> None:
        """Start a role; if the system has no descriptor, process or memory for it now, try again later."""
        role.num_engine_deaths = self._num_engine_deaths
        try:
            if not self._directory.config.exists():
                self.config.save(self._directory.config)
            self._directory.clients.mkdir(mode=0o700, exist_ok=True)
            role.spawn()
        except OSError as error:
            delay = role.start_failed(time.monotonic())
            log.error("role cannot be started: tried again", name=str(role.name), reason=str(error), in_s=delay)
            return
        if role.pidfd >= 0:
            self._selector.register(role.pidfd, selectors.EVENT_READ)

    def _wait_until_ready(self) -> bool:
        """Return whether a real request has gone through; False if the stop was asked for before.

        Raises:
            ServiceUnavailable: a role has ended, or the time is over.
        """
        deadline = time.monotonic() + self.config.start_timeout_s
        reason = ""
        with ThreadPoolExecutor(1, "mmcached-first-request") as thread:
            request: Future[None] | None = None
            while not self._stop.is_set:
                now = time.monotonic()
                self._require_roles(now)
                self._readiness.look(now)
                if request is None and self._readiness.is_ready:
                    request = thread.submit(first_request, self.run_dir)
                if request is not None and request.done():
                    error = request.exception()
                    if error is None:
                        return True
                    if not isinstance(error, MmcachedError):
                        raise error
                    request = None
                    reason = str(error)
                elif not self._readiness.is_ready and self._readiness.reason != reason:
                    reason = self._readiness.reason
                    self._tell(f"not ready yet: {reason}")
                if now > deadline:
                    raise ServiceUnavailable(f"not ready within {self.config.start_timeout_s} s: {reason}")
                self._wait_for_event()
            # The thread's client ends with the frontend: `with` would wait for it before that is told to end.
            self._frontend.terminate()
        return False

    def _require_roles(self, now: float) -> None:
        for role in self.all_roles:
            if role.due is not None and role.due <= now:
                self._spawn(role)
            elif role.process is not None and not role.is_alive:
                status = role.process.returncode
                raise ServiceUnavailable(
                    f"{role.name} ended with status {status} before the service was ready; see its log"
                )

    # ---- keeping alive

    def _wait_for_event(self) -> None:
        """Return when a child has died, or after a short while, so that signals and due times are noticed."""
        self._selector.select(WAKE_INTERVAL_S)
        self._page.publish_if_due(self._stats)

    def _stats(self) -> SupervisorStats:
        restarts = sum(role.num_restarts for role in self.all_roles)
        return SupervisorStats(restarts=restarts, draining=int(self.is_draining))

    def _keep_alive(self, now: float) -> None:
        """Reap the dead, start what is due, kill what should be gone.

        Raises:
            ServiceUnavailable: a role is given up.
        """
        for role in self.all_roles:
            if role.due is None and not role.is_alive:
                self._reap(role, now)
            if role.kill_at is not None and role.kill_at <= now:
                log.warning("role did not end with its engine: killed", name=str(role.name))
                role.kill()
                role.kill_at = None
            if role.due is not None and role.due <= now:
                self._spawn(role)

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
        if role is self._engine:
            self._num_engine_deaths += 1
            # A hung worker holds its byte of the row: until it is dead, what it reads stays pinned.
            for worker in self._workers:
                worker.kill_at = now + ORPHAN_GRACE_S if worker.is_alive else None

    def _forgive_blamed_deaths(self) -> None:
        """Count no worker's deaths for which the engine has found the request: different ones may come all day."""
        snapshot = self._reader.read().get(self._engine.name)
        if snapshot is None or not isinstance(snapshot.stats, EngineStats):
            return
        if snapshot.stats.poisonous_requests > self._num_poisonous_requests:
            for worker in self._workers:
                worker.forgive()
        self._num_poisonous_requests = snapshot.stats.poisonous_requests

    def _look_for_trouble(self, now: float) -> None:
        """Kill what lives and does not work; what dies of it is started again like any other.

        Raises:
            ServiceUnavailable: the run directory is gone.
        """
        self._readiness.look(now)
        if now < self._next_look:
            return
        self._next_look = now + LOOK_INTERVAL_S
        if not self._seat.is_named():
            raise ServiceUnavailable(f"{self.run_dir} is not our directory any more: nobody can reach this service")
        self._admin.keep()
        if now >= self._next_touch:
            self._next_touch = now + TOUCH_INTERVAL_S
            self._seat.touch()
        pids = {role.name: role.pid for role in self.all_roles if role.is_alive and role.pid is not None}
        for name, silent_s in self._watchdog.overdue(pids, self._reader.read(), now):
            log.error("role is silent: killed", name=str(name), pid=pids[name], silent_s=round(silent_s, 1))
            next(role for role in self.all_roles if role.name == name).kill()
        self._look_at_readiness(now)

    def _look_at_readiness(self, now: float) -> None:
        since = self._readiness.not_ready_since
        if self._readiness.is_ready:
            self._was_group_restarted = False
        if since is None or now - since < self.config.limits.not_ready_timeout_s:
            return
        if not all(role.is_alive for role in self.all_roles):
            return
        victims = [self._frontend, self._engine] if self._was_group_restarted else [self._engine]
        self._was_group_restarted = True
        self._readiness.forgive()
        names = [str(role.name) for role in victims]
        log.error("all live, and nothing goes through: killed", names=names, reason=self._readiness.reason)
        for role in victims:
            role.kill()

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
