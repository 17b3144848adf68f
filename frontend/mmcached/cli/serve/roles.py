"""One role in the supervisor: a command, its process, its deaths.

    running --died--> waiting --due--> running
       |                 |
       +--- stopped -----+--- given up

Spawn from the main thread: the parent-death signal follows the thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from mmcached.cli.serve.pidfd import open_pidfd
from mmcached.cli.serve.restarts import RestartPolicy
from mmcached.cli.watch.service_status import RoleStatus, State, date_of
from mmcached.wire.process.death import environment_for_children
from mmcached.wire.stats import RoleName

ENGINE_GONE = 3
"""A worker's exit status when its engine is gone; if the engine has died, it does not count against the worker."""
PAST_CACHES = {"GLIBC_TUNABLES": f"glibc.cpu.x86_non_temporal_threshold={2 << 20:#x}"}
"""Makes glibc on x86-64 write copies of 2 MiB and more past the caches, in which they would not stay: into cold memory
this takes two thirds of the time. Elsewhere it has no effect.
"""


class Role:
    """One child process, restarted when it dies.

    Attributes:
        name: As "worker 0.1".
        due: When to (re)start it, monotonic seconds; None while it runs.
        kill_at: When to SIGKILL it if it has not ended by itself; None: never.
        started_at: Wall-clock seconds of the last start.
        num_engine_deaths: Deaths of its engine before the last start.
    """

    def __init__(self, name: RoleName, arguments: Sequence[str], policy: RestartPolicy, *, num_threads: int) -> None:
        self.name = name
        self.due: float | None = None
        self.kill_at: float | None = None
        self.is_given_up = False
        self.num_restarts = 0
        self.started_at = 0.0
        self.num_engine_deaths = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.pidfd = -1
        self._arguments = list(arguments)
        self._policy = policy
        self._num_threads = num_threads
        self._num_failed_starts = 0
        self._was_started = False

    def spawn(self) -> None:
        """Start the process, which dies with this one; OSError if the system lacks a descriptor, process or memory."""
        environment = PAST_CACHES | environment_for_children()
        environment.setdefault("OMP_NUM_THREADS", str(self._num_threads))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mmcached", *self._arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            # stdout carries only the ready line; a role's output must not be mistaken for it.
            stdout=sys.stderr,
            # Ctrl-C goes to the foreground group; the children must be signalled from here, in order.
            process_group=0,
        )
        self.pidfd = open_pidfd(self.process.pid)
        self.due = self.kill_at = None
        self.num_restarts += self._was_started
        self._was_started = True
        self._num_failed_starts = 0
        self.started_at = time.time()

    def start_failed(self, now: float) -> float:
        """Record a failed start; return the seconds until the next try."""
        self._num_failed_starts += 1
        delay = self._policy.backoff_s(self._num_failed_starts)
        self.due = now + delay
        return delay

    @property
    def pid(self) -> int | None:
        return None if self.process is None else self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def reap(self, now: float, *, is_excused: bool) -> float | None:
        """Record its death; return the seconds until the restart, or None if it is given up.

        Args:
            is_excused: Its engine has died since its start, so that ending was correct.
        """
        status = None if self.process is None else self.process.returncode
        self.close()
        delay = 0.0 if status == ENGINE_GONE and is_excused else self._policy.died(now)
        self.due = None if delay is None else now + delay
        self.is_given_up = delay is None
        return delay

    def forgive(self) -> None:
        self._policy.forgive()

    def status(self, *, was_ready: bool, is_draining: bool) -> RoleStatus:
        return RoleStatus(
            name=str(self.name),
            pid=self.pid if self.is_alive else None,
            state=self._state(was_ready=was_ready, is_draining=is_draining),
            restarts=self.num_restarts,
            up_since=date_of(self.started_at) if self.started_at else None,
        )

    def _state(self, *, was_ready: bool, is_draining: bool) -> State:
        if self.is_given_up:
            return "failed"
        if self.is_alive:
            return "running" if was_ready else "starting"
        return "ended" if is_draining else "restarting"

    def terminate(self) -> None:
        if self.process is not None and self.is_alive:
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.process is not None and self.is_alive:
            self.process.kill()

    def close(self) -> None:
        if self.process is not None:
            self.process.wait()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
