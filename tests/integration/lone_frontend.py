"""A frontend process without engines: all that the sidecar's store needs, and it starts in a second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.paths import RunDir
from mmcached.wire.process.death import environment_for_children
from mmcached.wire.stats import ServiceStats
from tests.integration.processes import DEADLINE_S, eventually


class LoneFrontend:
    """Enter to start and wait until it answers; leave to stop. Make it in the main thread."""

    def __init__(self, run_dir: Path, config: ServiceConfig) -> None:
        self.directory = RunDir(run_dir)
        self.directory.create()
        config.save(self.directory.config)

    def start(self) -> None:
        """Start the process, after a kill too; return when it answers."""
        self.directory.remove_sockets()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mmcached", "frontend", "--run-dir", str(self.directory.path)],
            env=environment_for_children(),
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
        with Client(self.directory.path, connect_timeout_s=DEADLINE_S, fail_open=False):
            pass

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait(DEADLINE_S)

    def stats(self) -> ServiceStats:
        with Client(self.directory.path) as client:
            return client.stats()

    def at_rest(self) -> ServiceStats:
        """Wait until no lease is out and nobody computes or waits; return the figures then."""
        return eventually(
            self.stats,
            lambda now: (now.store.ring.leases, now.store.computing, now.store.waiting) == (0, 0, 0),
            "leases, claims and waits return to 0",
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
