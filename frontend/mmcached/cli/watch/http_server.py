"""A minimal HTTP server for GET requests, with bounded time, connections and memory.

    connection ── head, within HEAD_TIMEOUT_S, at most MAX_HEAD_BYTES ──> endpoint ──> answer ──> closed

One request per connection, so that each has an end. A connection beyond `max_connections` ends the oldest, preferably
one without a request: short requests are always answered, and the number of descriptors stays bounded. No TLS, no
authentication.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import structlog

log = structlog.get_logger("mmcached.http")

MAX_CONNECTIONS = 32
ACCEPTED_AT_ONCE = 16
"""Connections accepted in one turn of the loop, before the oldest are ended."""
BACKLOG = 1024
"""Backlog of the kernel, large enough that a client need not retry a second later when many connect at once."""
MAX_HEAD_BYTES = 128 << 10
HEAD_TIMEOUT_S = 5.0
SEND_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A GET or HEAD request; of repeated query names or headers the last value counts. Header names are lower-case."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    content: bytes
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


Endpoint = Callable[[HttpRequest], Awaitable[Answer]]
"""Answers one path; responsible for its own deadline."""


class HttpServer:
    """Serves the endpoints until cancelled, over at most `max_connections` connections of all listeners."""

    def __init__(self, endpoints: Mapping[str, Endpoint], *, max_connections: int = MAX_CONNECTIONS) -> None:
        self._endpoints = endpoints
        self._max_connections = max_connections
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # the oldest first
        self._asking: set[asyncio.Task[None]] = set()

    async def serve(self, listeners: Sequence[socket.socket], is_up: Callable[[], None]) -> None:
        """Accept until cancelled, then end every connection.

        Args:
            listeners: Bound sockets; closed at the end. A loopback listener refuses requests with a non-local Host
                header.
            is_up: Called once connections are accepted.
        """
        servers = []
        try:
            for listener in listeners:
                take = partial(self._take, only_local_names=_is_loopback(listener))
                servers.append(
                    await asyncio.start_server(take, sock=listener, backlog=ACCEPTED_AT_ONCE, limit=MAX_HEAD_BYTES)
                )
                listener.listen(BACKLOG)
            is_up()
            await asyncio.get_running_loop().create_future()
        finally:
            for server in servers:
                server.close()
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _take(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, only_local_names: bool
    ) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        while len(self._connections) >= self._max_connections:
            self._end_oldest()
        self._connections[task] = writer
        try:
            await self._converse(reader, writer, task, only_local_names=only_local_names)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # closed, timed out, or ended for a newer connection
        except Exception:
            log.exception("a request has failed")
        finally:
            self._connections.pop(task, None)
            self._asking.discard(task)
            writer.transport.abort()

    def _end_oldest(self) -> None:
        idle = (task for task in self._connections if task not in self._asking)
        oldest = next(idle, None) or next(iter(self._connections))
        self._connections.pop(oldest).transport.abort()
        oldest.cancel()

    async def _converse(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        task: asyncio.Task[None],
        *,
        only_local_names: bool,
    ) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            method, answer = "GET", _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            self._asking.add(task)
            method, answer = await self._answer(head, only_local_names=only_local_names)
        writer.write(_rendered(answer, has_content=method != "HEAD"))
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await writer.drain()
            writer.write_eof()
            # Unread input at close would make the kernel discard the answer.
            while await reader.read(1 << 16):
                pass
            writer.close()
            await writer.wait_closed()

    async def _answer(self, head: bytes, *, only_local_names: bool) -> tuple[str, Answer]:
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "GET", _plain(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if only_local_names and not _is_local_name(headers.get("host", "")):
            return method, _plain(HTTPStatus.MISDIRECTED_REQUEST)
        if method not in ("GET", "HEAD"):
            return method, _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        try:
            parts = urlsplit(target)
        except ValueError:
            return method, _plain(HTTPStatus.BAD_REQUEST)
        endpoint = self._endpoints.get(parts.path)
        if endpoint is None:
            return method, _plain(HTTPStatus.NOT_FOUND)
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        return method, await endpoint(HttpRequest(parts.path, query, headers))


def _plain(status: HTTPStatus) -> Answer:
    return Answer(f"{status.phrase}\n".encode(), status.value)


def _rendered(answer: Answer, *, has_content: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        f"content-type: {answer.content_type}\r\n"
        f"content-length: {len(answer.content)}\r\n"
        "x-content-type-options: nosniff\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (answer.content if has_content else b"")


def _is_loopback(listener: socket.socket) -> bool:
    if listener.family == socket.AF_UNIX:
        return False  # access is governed by the permissions of its directory
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _is_local_name(host: str) -> bool:
    """Return whether a Host header means this machine, so that web pages of other origins cannot read the server."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name).is_loopback
    return name in ("localhost", "")
