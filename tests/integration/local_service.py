"""All roles of one service in this process: real sockets, a real segment, one thread for each role.

What a matrix of many configurations needs: it starts in a fraction of a second. Death is the subject of other tests.
"""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from mmcached.cli.demo.run import all_caches_off
from mmcached.cli.serve.first_request import first_request
from mmcached.client import Client
from mmcached.engine.server.server import EngineServer
from mmcached.frontend.server import Frontend
from mmcached.gateway.gateway import ModelGateway
from mmcached.shm.stats.page import StatsPage
from mmcached.shm.stats.publisher import StatsPublisher
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, ServiceUnavailable
from mmcached.wire.messages.engine import WorkerHello
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import RoleName
from mmcached.worker.server import WorkerServer
from mmcached.worker.steps.runner import ModelRunner
from tests.integration.processes import DEADLINE_S, small_config

POLL_S = 0.01


class LocalService:
    """Enter to start and wait until a real request has gone through; leave to stop, and to hear of a role's error.

    Args:
        saves_outputs: what the encoder says goes into the store, too, at some time behind the answer.
    Attributes:
        frontend, engines: for tests that look at their books, after the service has stopped or is at rest.
    """

    def __init__(self, run_dir: Path, config: ServiceConfig, *, saves_outputs: bool = False) -> None:
        self.run_dir = run_dir
        self._saves_outputs = saves_outputs
        self.config = config
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        directory = RunDir(self.run_dir)
        directory.create()
        self.page = StatsPage.create(directory.stats_page)
        self.frontend = Frontend(directory, self.config, ModelGateway)
        self.engines = [EngineServer(directory, self.config, index) for index in range(self.config.num_engines)]
        self._start(lambda: self._serve(self.frontend))
        for index, engine in enumerate(self.engines):
            self._start(partial(self._serve, engine))
            for rank in range(self.config.world_size):
                self._start(partial(self._work, directory, index, rank))
        self._wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), f"{thread.name} does not stop"
        self.page.close()
        if error is None and self.errors:
            raise self.errors[0]

    def _serve(self, role: Frontend | EngineServer) -> None:
        with role:
            while not self._stop.is_set():
                role.poll(POLL_S)

    @property
    def engine(self) -> EngineServer:
        """The first of them."""
        return self.engines[0]

    @property
    def gateway(self) -> ModelGateway:
        assert isinstance(self.frontend.gateway, ModelGateway)
        return self.frontend.gateway

    def _work(self, directory: RunDir, index: int, rank: int) -> None:
        runner = ModelRunner(self.config, rank=rank, device=torch.device("cpu"), run_dir=self.run_dir)
        if not self._saves_outputs:
            runner._items._outputs = None
        hello = WorkerHello(rank, secrets.randbits(63), self.config.digest(), "cpu")
        page = StatsPublisher(directory.stats_page, RoleName("worker", index, rank))
        with page, runner:
            server = WorkerServer(runner, hello, directory.worker_address(index), page)
            try:
                server.run(self._stop.is_set, rest_s=0.1)
            finally:
                server.close()

    def _start(self, role: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                role()
            except BaseException as error:  # re-raised by the test's own thread
                self.errors.append(error)

        self._threads.append(threading.Thread(target=guarded, name=f"role {len(self._threads)}"))
        self._threads[-1].start()

    def _wait_until_ready(self) -> None:
        give_up = time.monotonic() + DEADLINE_S
        while True:
            try:
                first_request(self.run_dir)
                with Client(self.run_dir) as client:
                    if len(client.stats().engines) == len(self.engines):
                        return
                raise ServiceUnavailable("not every engine is ready")
            except MmcachedError as error:
                if self.errors or time.monotonic() > give_up:
                    self._stop.set()
                    raise (self.errors or [error])[0] from error
                self._stop.wait(POLL_S)


@contextmanager
def scratch_service(config: ServiceConfig, **options: bool) -> Iterator[tuple[LocalService, Client]]:
    """Run a service in a directory of its own, for fixtures of a module; yield a client of it, too."""
    with (
        tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch,
        LocalService(Path(scratch), config, **options) as service,
        Client(scratch) as client,
    ):
        yield service, client


@contextmanager
def without_caches(**changes: object) -> Iterator[Client]:
    """Run a small service that has no caches; yield a client of it."""
    with scratch_service(all_caches_off(small_config(**({"world_size": 1} | changes)))) as (_, client):
        yield client
