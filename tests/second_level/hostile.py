"""Stands where a server should be: lies to whoever connects, or passes on what a real server says, only worse."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from mmcached.wire.closeable import Closeable

PATIENCE_S = 20.0
"""Until a thread here gives up; no test waits for it to pass."""
Behave = Callable[[socket.socket], None]


class Stand(Closeable):
    """Listens at a unix socket; each connection is treated by `behave` in a thread of its own, then closed."""

    def __init__(self, path: Path, behave: Behave) -> None:
        self.url = f"unix://{path}"
        self._behave = behave
        self._is_over = False
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._start(self._accept)

    def close(self) -> None:
        self._is_over = True
        self._listener.shutdown(socket.SHUT_RDWR)
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._listener.close()

    def _start(self, run: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                connection.settimeout(PATIENCE_S)
                self._connections.append(connection)
                self._start(lambda connection=connection: self._treat(connection))  # type: ignore[misc]

    def _treat(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if not self._is_over:
                self._behave(connection)


def saying(answer: bytes) -> Behave:
    """Return what gives one answer to whatever is asked, and goes on listening."""

    def behave(connection: socket.socket) -> None:
        while connection.recv(1 << 16):
            connection.sendall(answer)

    return behave


def saying_and_closing(answer: bytes) -> Behave:
    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    return behave


def passing_on(server: Path, send: Callable[[socket.socket, bytes], None]) -> Behave:
    """Return what passes on all that is asked to a real server, and its answers by `send`, piece by piece."""

    def behave(connection: socket.socket) -> None:
        with socket.socket(socket.AF_UNIX) as real:
            real.settimeout(PATIENCE_S)
            real.connect(str(server))
            asked = threading.Thread(target=_pump, args=(connection, real))
            asked.start()
            try:
                while answer := real.recv(1 << 16):
                    send(connection, answer)
            finally:
                for end in (connection, real):
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
                asked.join(PATIENCE_S)

    return behave


def cut_after(num_bytes: int) -> Callable[[socket.socket, bytes], None]:
    """Return what sends no more than so many bytes, then breaks the connection."""
    left = num_bytes

    def send(connection: socket.socket, answer: bytes) -> None:
        nonlocal left
        connection.sendall(answer[:left])
        left -= len(answer)
        if left <= 0:
            left = num_bytes
            raise ConnectionResetError

    return send


def stall_after(num_bytes: int) -> Callable[[socket.socket, bytes], None]:
    """Return what sends no more than so many bytes, then nothing for as long as anybody waits."""
    left = num_bytes

    def send(connection: socket.socket, answer: bytes) -> None:
        nonlocal left
        connection.sendall(answer[:left])
        left = max(0, left - len(answer))

    return send


def trickle(connection: socket.socket, answer: bytes) -> None:
    """Send a byte at a time, as fast as each is waited for."""
    for at in range(len(answer)):
        connection.sendall(answer[at : at + 1])
        threading.Event().wait(0.002)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while asked := source.recv(1 << 16):
            target.sendall(asked)
        target.shutdown(socket.SHUT_WR)
