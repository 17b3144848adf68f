"""Starts real servers of Redis and Valkey for tests; each has a unix socket in a folder of its own."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import redis
from redis.exceptions import RedisError

from mmcached.second_level.namespaces import key_prefix
from tests.house import REPOSITORY
from tests.second_level.programs import Program

VALKEY = REPOSITORY / ".valkey"
"""Where `make test-valkey` lays Debian's valkey-server."""
PROGRAMS = ("redis-server", "valkey-server")
STARTS_WITHIN_S = 30.0
EPOCH = f"{key_prefix('')}epoch"
"""Key of the epoch of hosts without a namespace."""


def find_program(name: str) -> str | None:
    """Return the path of redis-server or valkey-server, or None if this machine has none."""
    own = VALKEY / "bin" / name
    return str(own) if own.exists() else shutil.which(name)


class Server(Program):
    """One server, killed and started again as a test needs it; it keeps nothing on disk."""

    def __init__(self, program: str, folder: Path, *options: str) -> None:
        self.socket = folder / f"socket{len(list(folder.iterdir()))}"
        command = [program, "--port", "0", "--unixsocket", str(self.socket), "--save", "", *options]
        super().__init__(command, folder=folder)

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.socket.unlink(missing_ok=True)
        super().start()
        with self.client() as client:
            await_answer(client)

    def client(self) -> redis.Redis:
        """Return plain redis-py: what a test does to a server behind our back."""
        return redis.Redis(unix_socket_path=str(self.socket))


def free_ports(count: int) -> list[int]:
    """Return so many ports that nobody has now; those of a cluster have another one 10,000 above."""
    with contextlib.ExitStack() as undo:
        ports: list[int] = []
        while len(ports) < count:
            probe = undo.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            if port < 55_000:
                ports.append(port)
        return ports


def await_answer(client: redis.Redis) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while True:
        with contextlib.suppress(RedisError):
            if client.info():  # PING is answered by some that have not loaded, INFO needs to be let in
                return
        if time.monotonic() > deadline:
            raise TimeoutError("the server does not answer")
        time.sleep(0.005)


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a folder whose name is short: a unix socket's path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="mmc-l2-", dir="/tmp") as folder:
        yield Path(folder)
