"""Redis on a unix socket: SET by the writer, the key over ZeroMQ, GET by every reader."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import torch

from ring_peers.pool import ReaderPool
from ring_peers.transport import DEADLINE_MS, Link, Options, Shape, Unavailable

KEYS = 4
"""Names are used in turn, so that the server's memory stays bounded."""


def _connect(path: str) -> Any:
    return importlib.import_module("redis").Redis(unix_socket_path=path, socket_timeout=DEADLINE_MS / 1000)


class RedisWriterEnd:
    """A server of its own, without persistence."""

    name = "Redis"

    def __init__(self, pool: ReaderPool, shape: Shape) -> None:
        server = shutil.which("redis-server")
        if server is None or importlib.util.find_spec("redis") is None:
            raise Unavailable("redis-server or the Python package redis is not installed")
        self._pool = pool
        self._readers = range(shape.num_readers)
        self._session = pool.new_session()
        path = f"{pool.directory}/redis{self._session}"
        with contextlib.ExitStack() as undo:
            command = [server, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
            process = subprocess.Popen(command, cwd=pool.directory, stdout=subprocess.DEVNULL)
            undo.callback(process.wait)
            undo.callback(process.kill)
            self._client = undo.enter_context(_connect(path))
            _await_server(self._client)
            pool.open(self._session, "redis_unix", {index: {"path": path} for index in self._readers})
            self._undo = undo.pop_all()

    def begin(self, num_puts: int) -> None:
        pass

    def put(self, key: int, item: torch.Tensor) -> None:
        self._client.set(str(key % KEYS), item.numpy().data.cast("B"))
        self.hit(key)

    def hit(self, key: int) -> None:
        message = bytes([self._session]) + str(key % KEYS).encode()
        for index in self._readers:
            self._pool.links[index].send(message)

    def holds(self, key: int) -> bool:
        return True

    def close(self) -> None:
        try:
            self._pool.close_session(self._session, len(self._readers))
        finally:
            self._undo.close()


class RedisReaderEnd:
    """A client; what it gets is a copy of its own."""

    def __init__(self, options: Options) -> None:
        self._client = _connect(options["path"])

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        yield torch.frombuffer(bytearray(self._client.get(message[1:])), dtype=torch.float32)

    def close(self) -> None:
        self._client.close()


def open_reader(session: int, options: Options, link: Link) -> RedisReaderEnd:
    """Open the reader's end."""
    return RedisReaderEnd(options)


def _await_server(client: Any) -> None:
    errors = importlib.import_module("redis").exceptions
    deadline = time.monotonic() + DEADLINE_MS / 1000
    while True:
        try:
            client.ping()
        except errors.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
