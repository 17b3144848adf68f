"""A real frontend of a store alone, in a thread, and the second level beside it: in this process, or in its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec

from mmcached.client import Client
from mmcached.frontend.server import Frontend
from mmcached.frontend.store_alone import StoreAlone
from mmcached.second_level.process import SecondLevelProcess
from mmcached.second_level.shared_records import SharedRecords
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import StoreStats
from tests.integration.processes import DEADLINE_S, eventually
from tests.second_level.plain_server import PlainBackend, PlainServer

POLL_S = 0.05
NOWHERE = "redis://user:hunter2@127.0.0.1:1"
LIMITS = LimitsConfig(l2_timeout_ms=20_000, l2_claim_wait_ms=60_000, flush_interval_s=0.0)
"""No test waits for these to pass."""


def config_of(url: str = NOWHERE, limits: LimitsConfig = LIMITS, **more: Any) -> ServiceConfig:
    config = ServiceConfig(world_size=0, store_gb=1 / 16, store_l2=url, limits=limits)
    return msgspec.structs.replace(config, **more)


class FrontendThread(Closeable):
    """One frontend; `close` ends it as a process ends, or as a kill does."""

    def __init__(self, path: Path, config: ServiceConfig) -> None:
        self.directory = RunDir(path)
        self.directory.create()
        config.save(self.directory.config)
        self.frontend = Frontend(self.directory, config, StoreAlone)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def stats(self) -> StoreStats:
        with Client(self.directory.path) as client:
            return client.stats().store

    def await_level(self) -> None:
        """Wait until a second level has asked for orders."""
        eventually(lambda: self.frontend.store.second_level.is_open, bool, "a second level")

    def await_loss(self) -> None:
        """Wait until there is none any more."""
        eventually(lambda: not self.frontend.store.second_level.is_open, bool, "no second level")

    def await_rest(self) -> None:
        """Wait until nobody holds a lease, the test's own client alone has a ring for puts, and nobody waits."""
        eventually(
            lambda: self.stats,
            lambda stats: (stats.ring.leases, stats.nurseries, stats.fetches.parked) == (0, 1, 0),
            "no leases, one ring for puts, nobody who waits",
        )

    def close(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        self.frontend.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.frontend.poll(POLL_S)


class Fleet(ExitStack):
    """Hosts of a test, all with one server in memory."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self.server = PlainServer()
        self._home = home

    def host(self, name: str, **more: Any) -> tuple[Client, SecondLevelProcess]:
        """Return a client of a new host, and its second level, which is at work."""
        frontend = self.enter_context(FrontendThread(self._home / name, config_of(**more)))
        level = self.level(frontend)
        client = self.enter_context(Client(frontend.directory.path, tenant="t"))
        return client, level

    def level(self, frontend: FrontendThread) -> SecondLevelProcess:
        records = SharedRecords(PlainBackend(self.server), max_bytes=1 << 30, ttl_s=60.0)
        config = ServiceConfig.load(frontend.directory.config)
        level = self.enter_context(SecondLevelProcess(frontend.directory, config, records))
        level.start()
        frontend.await_level()
        return level

    def __enter__(self) -> Self:
        return self


@contextmanager
def second_level_process(directory: RunDir, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the role as the supervisor does, and kill it at the end."""
    command = [sys.executable, "-m", "mmcached", "second-level", "--run-dir", str(directory.path)]
    with subprocess.Popen(command, env={**os.environ, **environment}, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate(timeout=DEADLINE_S)
