"""Two services as two hosts with one Redis between them, one without a second level, and a client of each."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import redis

from mmcached.cache.store_keys import store_key
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.second_level.namespaces import key_prefix
from mmcached.wire.config import ServiceConfig
from scripts.bench.peers import connect_redis

NUM_BYTES = 4_930_000  # 4.7 MiB
SIZE = "4.7 MiB"
REDIS_PY = "redis-py"
DEADLINE_S = 60.0
"""Until something that a section waits for; a section fails instead of waiting for longer."""


class Hosts:
    """The services, `a` and `b` with one server, `c` without, and a client of each; sections start others, too."""

    def __init__(self, undo: contextlib.ExitStack) -> None:
        self.folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mmc-l2-", dir="/tmp")))
        self.path = str(self.folder / "redis")
        self.start_server()
        undo.callback(self.kill_server)
        self._numbers = count()
        self.clients = {name: self.start(undo, name) for name in ("a", "b")}
        self.clients["c"] = self.start(undo, "c", store_l2="")
        self.record = {"x": np.random.default_rng(0).integers(0, 256, NUM_BYTES, np.uint8)}
        for client in self.clients.values():
            client.put("item", self.record)
            client.get("item", tensors="numpy")
        while self.clients["a"].stats().second_level is None:
            time.sleep(0.01)

    def start(self, undo: contextlib.ExitStack, name: str, **settings: Any) -> Client:
        """Start a service that is ended by `undo`, with the server behind its store unless `settings` say otherwise."""
        settings = {"store_gb": 0.5, "store_l2": self.url(), "log_level": "warning", **settings}
        config = ServiceConfig(world_size=0, device="cpu", **settings)
        service = undo.enter_context(ChildService(self.folder / name, config, self.folder / f"{name}.json"))
        return undo.enter_context(Client(service.run_dir, timeout_s=30.0, fail_open=False))

    def url(self, namespace: str = "") -> str:
        return f"unix://{self.path}" + (f"?namespace={namespace}" if namespace else "")

    def start_server(self) -> None:
        Path(self.path).unlink(missing_ok=True)
        command = ["redis-server", "--port", "0", "--unixsocket", self.path, "--save", ""]
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while True:
            with contextlib.suppress(redis.exceptions.RedisError), contextlib.closing(connect_redis(self.path)) as one:
                one.ping()
                return
            time.sleep(0.01)

    def kill_server(self) -> None:
        self._server.kill()
        self._server.wait()

    def new_key(self) -> str:
        return f"item {next(self._numbers)}"

    @contextlib.contextmanager
    def server(self, state: str) -> Iterator[None]:
        """Have the server in a state."""
        if state == "stopped":
            self._server.send_signal(19)
        elif state == "full":
            self._limit(1)
        elif state == "dead":
            self.kill_server()
        try:
            yield
        finally:
            if state == "stopped":
                self._server.send_signal(18)
            elif state == "full":
                self._limit(0)
            elif state == "dead":
                self.start_server()

    def wait_for(self, key: str, *, namespace: str = "") -> None:
        """Wait until the server has a record that a host has put, and all is quiet."""
        with contextlib.closing(connect_redis(self.path)) as server:
            while not server.exists(f"{key_prefix(namespace)}record:{store_key('', key)}"):
                time.sleep(0.005)
        time.sleep(0.02)

    def _limit(self, num_bytes: int) -> None:
        with contextlib.closing(connect_redis(self.path)) as server:
            server.config_set("maxmemory", num_bytes)


def wait_until(has_come: Callable[[], object], what: str) -> None:
    """Wait until something is so.

    Raises:
        TimeoutError: It is not so within `DEADLINE_S`.
    """
    deadline = time.monotonic() + DEADLINE_S
    while not has_come():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} has not come within {DEADLINE_S:.0f} s")
        time.sleep(0.001)


def fetch_ahead(client: Client, keys: list[str]) -> None:
    """Prefetch records, and wait until all are here; late records are asked for again."""
    while not all(client.contains_many(keys)):
        client.prefetch(keys)
        time.sleep(0.0005)


def drop_here(client: Client, keys: list[str]) -> None:
    client.delete(*keys, local=True)


def held(client: Client, key: str) -> object:
    """Return a record, however often it must be asked for: a busy machine may be late."""
    while (hit := client.get(key, view=True, tensors="numpy")) is None:
        pass
    return hit


def timed(run: Callable[[], object]) -> float:
    """Return the microseconds of a call; what it returns lives until the clock has been read."""
    started = time.perf_counter_ns()
    result = run()
    taken = time.perf_counter_ns() - started
    del result
    return taken / 1000
