"""The parent of all roles: starts them, keeps them alive, ends them in order. Carries no data, imports no torch.

    Supervisor ──> RoleGroup ──> frontend, engine, workers      processes and their restarts
               ──> Watchdog, ReadinessWatch                     heartbeats; probes of the data path
               ──> AdminServer                                  health, metrics and status
               ──> ServiceManager                               systemd, if that started us

Every child asks the kernel to die with this process (see `wire.process.death`); the next start removes a killed
service's leftovers in /dev/shm and in the run directory. A role that dies too often ends the service with status 1.
Before the service is ready for the first time no dead role is restarted. SIGTERM drains; a second one ends everything
at once.

It reaches the run directory through its own descriptor (`seat`): another directory of that name belongs to another
service.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import structlog

from mmcached.cli.doctor.finding import CheckedHost
from mmcached.cli.doctor.start_checks import require_startable
from mmcached.cli.progress import Tell, Working, unseen
from mmcached.cli.serve.first_request import first_request, kind_of
from mmcached.cli.serve.orphans import reap_orphans
from mmcached.cli.serve.role_group import RoleGroup
from mmcached.cli.serve.seat import Seat
from mmcached.cli.serve.service_manager import ServiceManager
from mmcached.cli.serve.shm_room import host_without, require_room_for
from mmcached.cli.serve.watchdog import Watchdog
from mmcached.cli.terminal_text import shown
from mmcached.cli.watch.http_pages import AdminServer
from mmcached.cli.watch.readiness_watch import ReadinessWatch
from mmcached.cli.watch.service_status import Readiness, ServiceView, gather_status
from mmcached.cli.watch.shown_figures import summary_of
from mmcached.shm import sweep
from mmcached.shm.files.lock_file import remove_if_free
from mmcached.shm.segment.ring_notes import remove_notes
from mmcached.shm.stats.page import StatsPage, StatsPageReader
from mmcached.shm.stats.publisher import StatsPublisher
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, ServiceUnavailable
from mmcached.wire.paths import RunDir
from mmcached.wire.process.signals import StopFlag
from mmcached.wire.stats import RoleName, SupervisorStats

log = structlog.get_logger("mmcached.supervisor")

WAKE_INTERVAL_S = 0.05
"""The longest wait while something is wrong or under way (a start waits for two answers)."""
TOUCH_INTERVAL_S = 3600.0


class Supervisor(Closeable):
    """One service in one run directory.

    Must be made in the main thread: the parent-death signal follows the thread that spawns.

    Args:
        stop: The flag that ends it; by default a flag of its own.
        working: Shows the progress of the start.
        manager: The service manager to notify; by default none.

    Attributes:
        summary: After `close`, a one-line summary of the service's work; "" if it was never ready.

    Raises:
        ServiceUnavailable: Another supervisor holds this run directory, or processes may have too few descriptors.
        ConfigError: The directory is not private, its path too long, or the HTTP address cannot be bound.
        SegmentError: There is no room for the rings, or /dev/shm cannot be used.
    """

    def __init__(
        self,
        run_dir: Path,
        config: ServiceConfig,
        *,
        stop: StopFlag | None = None,
        working: Working = unseen,
        manager: ServiceManager | None = None,
    ) -> None:
        self.config = config
        self._working = working
        self._tell: Tell = lambda words: None
        self._manager = manager or ServiceManager()
        named = RunDir(run_dir.absolute())
        named.create()
        self.run_dir = named.path
        self._was_ready = False
        self.summary = ""
        self._next_look = self._next_touch = 0.0
        with ExitStack() as stack:
            self._stop = stop or stack.enter_context(StopFlag())
            self._seat = stack.enter_context(Seat(named))
            self._directory = self._seat.directory
            self._remove_leftovers()
            stack.callback(self._remove_leftovers)
            require_room_for(config, host_without(self.run_dir))
            require_startable(CheckedHost(self.run_dir, config))
            config.save(self._directory.config)
            stack.enter_context(StatsPage.create(self._directory.stats_page))
            self._page = stack.enter_context(StatsPublisher(self._directory.stats_page, RoleName("supervisor")))
            self._reader = stack.enter_context(StatsPageReader(self._directory.stats_page))
            self._watchdog = Watchdog(config)
            self._readiness = stack.enter_context(ReadinessWatch(self._directory, config))
            self._group = stack.enter_context(
                RoleGroup(config, self.run_dir, self._directory, self._reader, self._readiness)
            )
            self._admin = stack.enter_context(AdminServer(self.look, self._reader, directory=self._directory))
            self._group.wake_on(self._stop)
            self._closing = stack.pop_all()

    @property
    def is_draining(self) -> bool:
        return self._stop.is_set

    def look(self) -> ServiceView:
        """Return the current view of all roles. Called from the HTTP thread: changes nothing."""
        is_draining = self.is_draining
        roles = [role.status(was_ready=self._was_ready, is_draining=is_draining) for role in self._group.roles]
        is_ready = self._was_ready and self._readiness.is_ready and not is_draining
        return ServiceView(self.run_dir, self.config, is_draining, roles, is_ready)

    def run(self) -> int:
        """Start all roles, announce readiness on stdout, and keep them alive until stopped.

        Returns:
            0 after an orderly stop, even during the start.

        Raises:
            ServiceUnavailable: It did not become ready, a role was given up, or the run directory is gone.
        """
        num_engines, num_workers = self.config.num_engines, self.config.world_size
        groups = f"engine and {num_workers} worker(s)"
        groups = groups if num_engines == 1 else f"{num_engines} engines with {num_workers} worker(s) each"
        roles = f"frontend, {groups}" if num_engines else "the frontend alone, a store,"
        roles = f"{roles} and the second level" if self.config.store_l2 else roles
        start = f"starting {roles} in {self.run_dir}"
        with self._working(start) as self._tell:
            self._say(start)
            self._group.start()
            if not self._wait_until_ready():
                return 0
        self._was_ready = True
        address = f", {self._admin.url}" if self._admin.url else ""
        sys.stdout.write(f"mmcached ready: {shown(str(self.run_dir))} (pid {os.getpid()}){address}\n")
        sys.stdout.flush()
        self._manager.ready()
        while not self._stop.is_set:
            self._wait_for_event()
            self.turn(time.monotonic())
        return 0

    def turn(self, now: float) -> None:
        """Restart dead roles; kill roles that live but do not work, which are then restarted."""
        self._group.keep_alive(now)
        self._readiness.look(now)
        if self._readiness.is_ready:
            self._manager.works(now)
        if now >= self._next_look:
            self._next_look = now + self._watchdog.interval_s
            self._look_for_trouble(now)

    def close(self) -> None:
        """End all roles in order (frontend first, so that it can drain), remove sockets, and release the directory."""
        self._manager.stopping()
        self._group.stop(self.config.drain_timeout_s, is_hurried=lambda: self._stop.num_signals > 1)
        if not self.config.keep_cache:
            remove_notes(self.run_dir)  # notes of a frontend that had to be killed
        if self._was_ready and not self.summary:
            status = gather_status(self.look(), self._reader.read(), Readiness(False, "it has ended"))
            self.summary = summary_of(status)
        self._closing.close()

    # ---- starting

    def _remove_leftovers(self) -> None:
        """Remove leftovers of dead processes: rings of frontends, sockets of services, locks of clients.

        The ring that this run directory's next frontend adopts stays, and so do locks of live clients.
        """
        self._directory.remove_sockets()
        for name in sweep():
            log.info("removed what a dead process left behind", name=name)
        for path in self._directory.clients.glob("*.lock"):
            remove_if_free(path)

    def _wait_until_ready(self) -> bool:
        """Wait until a request succeeds through each engine, or a store's frontend answers; False if stopped before."""
        deadline = time.monotonic() + self.config.start_timeout_s
        reason = ""
        with ThreadPoolExecutor(1, "mmcached-first-request") as thread:
            request: Future[None] | None = None
            while not self._stop.is_set:
                now = time.monotonic()
                self._group.require(now)
                self._readiness.look(now)
                if self._readiness.is_ready and not self.config.has_workers:
                    return True
                if request is None and self._readiness.are_all_ready:
                    ask = partial(first_request, num_engines=self.config.num_engines, kind=kind_of(self.config))
                    request = thread.submit(ask, self.run_dir)
                if request is not None and request.done():
                    error = request.exception()
                    if error is None:
                        return True
                    if not isinstance(error, MmcachedError):
                        raise error
                    request = None
                    reason = str(error)
                elif not self._readiness.are_all_ready and self._readiness.reason != reason:
                    reason = self._readiness.reason
                    self._say(f"not ready yet: {reason}")
                if now > deadline:
                    raise ServiceUnavailable(f"not ready within {self.config.start_timeout_s} s: {reason}")
                self._wait_for_event()
            # The thread's client ends with the frontend: without this, `with` would wait for the client first.
            self._group.frontend.terminate()
        return False

    def _say(self, words: str) -> None:
        self._tell(words)
        self._manager.status(words)
        log.info(words)

    # ---- keeping alive

    def _wait_for_event(self) -> None:
        """Return when a child has died, a signal has come, or after a short while, so that due times are noticed."""
        is_at_rest = self._was_ready and self._readiness.is_at_rest and self._group.is_at_rest
        self._group.wait(self._watchdog.interval_s if is_at_rest else WAKE_INTERVAL_S)
        self._page.publish_if_due(self._stats)

    def _stats(self) -> SupervisorStats:
        restarts = sum(role.num_restarts for role in self._group.roles)
        return SupervisorStats(restarts=restarts, draining=int(self.is_draining))

    def _look_for_trouble(self, now: float) -> None:
        if not self._seat.is_named():
            raise ServiceUnavailable(
                f"{self.run_dir} was moved or replaced: clients cannot reach this service any more"
            )
        self._manager.status("ready" if self._readiness.is_ready else f"not ready: {self._readiness.reason}")
        self._admin.keep()
        if now >= self._next_touch:
            self._next_touch = now + TOUCH_INTERVAL_S
            self._seat.touch()
        living = {role.name: role for role in self._group.roles if role.is_alive}
        pids = {name: role.pid for name, role in living.items() if role.pid is not None}
        snapshots = self._reader.read()
        self._admin.sample(snapshots)
        for name, silent_s in self._watchdog.overdue(pids, snapshots, now):
            log.error("role is silent: killed", name=str(name), pid=pids[name], silent_s=round(silent_s, 1))
            living[name].kill()
        self._group.restart_if_stuck(now)
        if os.getpid() == 1:
            reap_orphans({role.pid for role in self._group.roles if role.pid is not None})
