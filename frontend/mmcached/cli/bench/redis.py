"""Runs a Redis server at a unix socket, and a client that uses only a socket.

redis-py adds some 100 µs to a call; a call that is faster than this client's is faster than Redis itself.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.process.death import environment_for_children

DEADLINE_S = 60.0
_NOT_THERE = b"$-1"


def has_redis_server() -> bool:
    return shutil.which("redis-server") is not None


@contextlib.contextmanager
def redis_server(path: str) -> Iterator[None]:
    """Run a server at a unix socket, with the data saved in the same folder; it saves only on request.

    Raises:
        ServiceUnavailable: It is not installed, or does not answer in time.
    """
    server = shutil.which("redis-server")
    if server is None:
        raise ServiceUnavailable("redis-server is not installed")
    command = [server, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
    folder = Path(path).parent
    process = subprocess.Popen(command, cwd=folder, env=environment_for_children(), stdout=subprocess.DEVNULL)
    try:
        _await_answer(path)
        yield
    finally:
        process.kill()
        process.wait()


class RawRedis:
    """A minimal client: it knows the size of an answer, and reads it into one buffer."""

    def __init__(self, path: str, num_bytes: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._answer = memoryview(bytearray(len(f"${num_bytes}\r\n") + num_bytes + len("\r\n")))

    def get(self, key: str) -> int:
        """Return the value's last byte; the value lies in the buffer until the next call."""
        self._socket.sendall(_command(b"GET", key.encode()))
        received = 0
        while received < len(self._answer):
            num_bytes = self._socket.recv_into(self._answer[received:])
            if not num_bytes or bytes(self._answer[:3]) == _NOT_THERE:
                raise ServiceUnavailable("Redis has lost the record")
            received += num_bytes
        return self._answer[-3]

    def set(self, key: str, value: memoryview) -> None:
        self._order(b"SET", key.encode(), value)

    def save(self) -> None:
        self._order(b"SAVE")

    def close(self) -> None:
        self._socket.close()

    def _order(self, *words: bytes | memoryview) -> None:
        self._socket.sendall(_command(*words))
        answer = self._socket.recv(16)
        if answer != b"+OK\r\n":
            raise ServiceUnavailable(f"Redis did not {bytes(words[0]).decode()}: {answer!r}")


def _command(*words: bytes | memoryview) -> bytes:
    parts: list[bytes | memoryview] = [b"*%d\r\n" % len(words)]
    for word in words:
        parts += [b"$%d\r\n" % len(word), word, b"\r\n"]
    return b"".join(parts)


def _await_answer(path: str) -> None:
    """Wait until a server answers, which it does not while it loads."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(path)
            probe.sendall(_command(b"PING"))
            if probe.recv(16) == b"+PONG\r\n":
                return
        if time.monotonic() > deadline:
            raise ServiceUnavailable(f"Redis does not answer at {path}")
        time.sleep(0.01)
