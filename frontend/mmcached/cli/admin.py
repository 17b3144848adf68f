"""The service's HTTP port, for probes, Prometheus and people; a thread of the supervisor, on loopback.

    GET /healthz            200 while this process answers
    GET /readyz             200, or 503 with the reason; ?verbose=1 lists every role
    GET /metrics            Prometheus text, or OpenMetrics where that is asked for
    GET /status             ServiceStatus as JSON

Every answer comes within a deadline, whatever the data path does: the event loop itself waits for nobody, questions to
the data path have a thread of their own, and looking at the page has another. What takes too long is a 503.

The thread stays out of the supervisor's business: it asks for snapshots, starts no process (a child's death signal
follows the thread that spawned it) and touches no signal.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mmcached.cli.metrics import make_registry
from mmcached.cli.observe import Announcement
from mmcached.cli.readiness import ReadinessCheck
from mmcached.cli.service_status import (
    Readiness,
    RoleStatus,
    Snapshots,
    SupervisorView,
    gather_status,
    role_statuses,
)
from mmcached.shm.stats_page import StatsPageReader
from mmcached.wire.errors import ConfigError, InvariantError, ServiceUnavailable
from mmcached.wire.paths import RunDir

LOOK_TIMEOUT_S = 2.0
"""Deadline of what asks only the page, the supervisor and /proc: microseconds, unless the machine itself is stuck."""
START_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 256

ResultT = TypeVar("ResultT")


class AdminServer:
    """Serves one supervisor. `start` and `stop` belong to one thread.

    Args:
        view: asked from threads of this server.
        reader: the stats page; stays open until `stop` has returned, its owner closes it.
        readiness: how readiness is found out; tests put another in.
    """

    def __init__(
        self, view: SupervisorView, reader: StatsPageReader, *, readiness: ReadinessCheck | None = None
    ) -> None:
        self._view = view
        self._reader = reader
        self._readiness = readiness or ReadinessCheck(view, reader.read)
        self._registry = make_registry(view, reader.read)
        self._running: _Running | None = None

    def start(self) -> str:
        """Bind, serve from a thread, say where in `http.json`, and return the URL.

        Raises:
            ConfigError: the address cannot be bound.
        """
        if self._running is not None:
            raise InvariantError("the HTTP server runs already")
        config = self._view.config
        listener = _bind(config.http_host, config.http_port)
        host, port = listener.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        running = _Running(self._routes(), listener)
        try:
            running.start()
            _announce(RunDir(self._view.run_dir).http_info, Announcement(url, os.getpid()))
        except BaseException:
            running.stop()
            raise
        self._running = running
        return url

    def stop(self) -> None:
        """End open connections, the threads and the announcement. A second call does nothing."""
        if self._running is not None:
            RunDir(self._view.run_dir).http_info.unlink(missing_ok=True)
            self._running.stop()
            self._running = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- what is asked

    def _routes(self) -> Callable[[ThreadPoolExecutor, ThreadPoolExecutor], Starlette]:
        def build(probing: ThreadPoolExecutor, looking: ThreadPoolExecutor) -> Starlette:
            async def find_out() -> Readiness:
                # The slack is for a thread that waits for the processor; the check keeps its own deadline.
                deadline_s = self._readiness.deadline_s + LOOK_TIMEOUT_S
                found = await _within(deadline_s, probing, self._readiness.check)
                return found or Readiness(False, f"the probe did not end within {deadline_s:.1f} s")

            async def healthz(request: Request) -> Response:
                return PlainTextResponse("ok\n")

            async def readyz(request: Request) -> Response:
                found = await find_out()
                lines = [("ready: " if found.ready else "not ready: ") + found.reason]
                if request.query_params.get("verbose", "0") not in ("", "0", "false"):
                    roles = await _within(LOOK_TIMEOUT_S, looking, lambda: role_statuses(self._view, self._read()))
                    lines += [_verbose_line(role) for role in roles or []]
                return PlainTextResponse("\n".join([*lines, ""]), 200 if found.ready else 503)

            async def metrics(request: Request) -> Response:
                encode, content_type = choose_encoder(request.headers.get("accept", ""))
                page = await _within(LOOK_TIMEOUT_S, looking, lambda: encode(self._registry))
                return _TOO_LATE if page is None else Response(page, media_type=content_type)

            async def status(request: Request) -> Response:
                found = await find_out()
                gathered = await _within(
                    LOOK_TIMEOUT_S, looking, lambda: gather_status(self._view, self._read(), found)
                )
                if gathered is None:
                    return _TOO_LATE
                return Response(msgspec.json.encode(gathered), media_type="application/json")

            endpoints = {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics, "/status": status}
            return Starlette(routes=[Route(path, endpoint) for path, endpoint in endpoints.items()])

        return build

    def _read(self) -> Snapshots:
        return self._reader.read()


_TOO_LATE = PlainTextResponse(f"the figures could not be read within {LOOK_TIMEOUT_S} s\n", 503)


class _Running:
    """The thread with its event loop, and the threads that it asks."""

    def __init__(
        self, build: Callable[[ThreadPoolExecutor, ThreadPoolExecutor], Starlette], listener: socket.socket
    ) -> None:
        self._listener = listener
        self._probing = ThreadPoolExecutor(1, "mmcached-probe")
        self._looking = ThreadPoolExecutor(2, "mmcached-look")
        config = uvicorn.Config(
            build(self._probing, self._looking),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name="mmcached-http", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if not self._server.is_up.wait(START_TIMEOUT_S) or not self._thread.is_alive():
            raise ServiceUnavailable(f"the HTTP server did not come up within {START_TIMEOUT_S} s; see the log")

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        for pool in (self._probing, self._looking):
            pool.shutdown(cancel_futures=True)
        self._listener.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])


class _Server(uvicorn.Server):
    """Says when it accepts; a flag that others poll would do, but they should not have to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


async def _within(timeout_s: float, threads: ThreadPoolExecutor, question: Callable[[], ResultT]) -> ResultT | None:
    """Return the answer of a blocking question, or None if it takes too long; its thread then goes on alone."""
    answer = asyncio.get_running_loop().run_in_executor(threads, question)
    try:
        done, _ = await asyncio.wait([answer], timeout=timeout_s)
        return answer.result() if done else None
    finally:
        answer.cancel()  # not asked yet: never; asked already: nobody hears the answer, also after the loop's end


def _verbose_line(role: RoleStatus) -> str:
    complaint = role.complaint
    age = "" if role.heartbeat_age_s is None else f", heartbeat {role.heartbeat_age_s:.1f} s ago"
    return f"[-] {complaint}" if complaint else f"[+] {role.name} (pid {role.pid}) is {role.state}{age}"


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        field, value = ("http_port", port) if port else ("http_host", host)
        raise ConfigError(field, value, f"{host}:{port} cannot be bound: {error.strerror or error}") from error


def _announce(path: Path, announcement: Announcement) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(msgspec.json.encode(announcement))
    new.chmod(0o600)
    new.replace(path)
