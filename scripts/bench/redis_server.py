"""Runs a Redis server for a measurement, and speaks to it: through redis-py, or by a socket and nothing else."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.harness import Unavailable

DEADLINE_S = 60.0


def has_server() -> bool:
    return shutil.which("redis-server") is not None


def has_client() -> bool:
    """Return whether redis-py is installed."""
    return importlib.util.find_spec("redis") is not None


@contextlib.contextmanager
def redis_server(path: str) -> Iterator[None]:
    """Run a server without persistence that listens at a unix socket.

    Raises:
        Unavailable: redis-server is not installed.
    """
    server = shutil.which("redis-server")
    if server is None:
        raise Unavailable("redis-server is not installed")
    command = [server, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, cwd=Path(path).parent, stdout=subprocess.DEVNULL)
    try:
        _await_listener(path)
        yield
    finally:
        process.kill()
        process.wait()


def connect(path: str) -> Any:
    """Return a client of redis-py.

    Raises:
        Unavailable: it is not installed.
    """
    if not has_client():
        raise Unavailable("the Python package redis is not installed")
    return importlib.import_module("redis").Redis(unix_socket_path=path, socket_timeout=DEADLINE_S)


class RawRedis:
    """The fastest client that there can be in Python: it knows how long an answer is, and reads it into one buffer."""

    def __init__(self, path: str, num_bytes: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._answer = memoryview(bytearray(len(f"${num_bytes}\r\n") + num_bytes + len("\r\n")))

    def get(self, key: str) -> Any:
        """Return the value's last byte; the value lies in the buffer until the next call."""
        self._socket.sendall(_command(b"GET", key.encode()))
        received = 0
        while received < len(self._answer):
            received += self._socket.recv_into(self._answer[received:])
        return np.frombuffer(self._answer, np.uint8)[-3]

    def set(self, key: str, value: memoryview) -> None:
        self._socket.sendall(_command(b"SET", key.encode(), value))
        if self._socket.recv(16) != b"+OK\r\n":
            raise RuntimeError("Redis did not take the record")

    def close(self) -> None:
        self._socket.close()


def _command(*words: Any) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _await_listener(path: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
            else:
                return
