"""Serves health, metrics and status over HTTP, for probes, Prometheus and people, in threads of the supervisor.

    GET /healthz            200 while this process answers
    GET /readyz             200, or 503 with the reason; ?verbose=1 lists every role
    GET /metrics            Prometheus text, or OpenMetrics where that is requested
    GET /status             ServiceStatus as JSON
    GET /                   a live web page              GET /overview: its figures, as JSON

It listens at `http.sock` in the run directory, which is private to the user, and at a TCP port only if configured.

Every answer comes within a deadline, or is a 503, whatever the data path does: the event loop never blocks, the probe
of the data path has a thread, and reading the page has others. The threads start no process (a child's death signal
follows the thread that spawned it) and touch no signal.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
import structlog
from prometheus_client.exposition import choose_encoder

from mmcached.cli.watch import overview_pages
from mmcached.cli.watch.http_server import BACKLOG, MAX_CONNECTIONS, Answer, Endpoint, HttpRequest, HttpServer
from mmcached.cli.watch.metrics import make_registry
from mmcached.cli.watch.overview_pages import OverviewPages
from mmcached.cli.watch.readiness import ReadinessCheck
from mmcached.cli.watch.service_status import (
    Readiness,
    RoleStatus,
    ServiceStatus,
    ServiceView,
    Snapshots,
    gather_status,
    role_statuses,
    stats_of_all,
)
from mmcached.cli.watch.store_readers import store_readers
from mmcached.shm.stats.page import StatsPageReader
from mmcached.wire.errors import ConfigError, InvariantError, MmcachedError, ServiceUnavailable
from mmcached.wire.limits import RESERVED_DESCRIPTORS
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.unix_sockets import NamedSocket

log = structlog.get_logger("mmcached.http")

LOOK_TIMEOUT_S = 2.0
"""Deadline of reading the page, the supervisor's state and /proc: microseconds, unless the machine itself is stuck."""
START_TIMEOUT_S = 10.0
MIN_CONNECTIONS = 4

ResultT = TypeVar("ResultT")


class AdminServer:
    """The HTTP server of one supervisor. `start`, `keep` and `stop` belong to one thread.

    Args:
        look: Returns the supervisor's current view; called from threads of this server.
        reader: The stats page; stays open until `stop` has returned.
    """

    def __init__(
        self,
        look: Callable[[], ServiceView],
        reader: StatsPageReader,
        *,
        directory: RunDir | None = None,
        readiness: ReadinessCheck | None = None,
    ) -> None:
        self._look = look
        self._reader = reader
        self._directory = directory or RunDir(look().run_dir)
        self._readiness = readiness or ReadinessCheck(look, reader.read)
        self._overviews = OverviewPages(lambda: store_readers(look().run_dir))
        self._registry = make_registry(look, reader.read)
        self._running: _Running | None = None
        self._named: NamedSocket | None = None
        self._closing = ExitStack()
        self.url = ""
        """The TCP address; "" without a port."""

    def start(self) -> str:
        """Bind, serve from a thread, and return the TCP URL, "" without a port; ConfigError if it cannot bind."""
        if self._running is not None:
            raise InvariantError("the HTTP server runs already")
        config = self._look().config
        with ExitStack() as stack:
            named = _listen_at(self._directory.http_socket)
            stack.callback(named.remove_name)
            listeners = [stack.enter_context(named.socket)]
            if config.http_port is not None:
                listener = stack.enter_context(_bind(config.http_host, config.http_port))
                listeners.append(listener)
                host, port = listener.getsockname()[:2]
                self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
            running = _Running(self._endpoints, listeners, _num_connections(RESERVED_DESCRIPTORS))
            stack.callback(running.stop)
            running.start()
            self._closing = stack.pop_all()
        self._running, self._named = running, named
        return self.url

    def keep(self) -> None:
        """Restart the server if its thread has ended or its socket is gone; a failure is retried at the next call."""
        if self._running is not None and self._running.is_alive and self._named is not None and self._named.is_named():
            return
        log.error("the HTTP thread has ended, or its socket was removed; it is restarted")
        self.stop()
        try:
            self.start()
        except (MmcachedError, OSError) as error:
            log.error("the HTTP server cannot be started", reason=str(error))

    def sample(self, snapshots: Snapshots) -> None:
        """Keep the current figures for the rates of the page and of `top`, if it is time."""
        self._overviews.sample(lambda: stats_of_all(snapshots), lambda: role_statuses(self._look(), snapshots))

    def stop(self) -> None:
        self._closing.close()
        self._running = None
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- requests

    def _endpoints(self, probing: ThreadPoolExecutor, looking: ThreadPoolExecutor) -> Mapping[str, Endpoint]:
        async def find_out() -> Readiness:
            # The slack covers a thread that waits for the processor; the check has its own deadline.
            deadline_s = self._readiness.deadline_s + LOOK_TIMEOUT_S
            found = await _within(deadline_s, probing, self._readiness.check)
            return found or Readiness(False, f"the probe did not end within {deadline_s:.1f} s")

        async def healthz(request: HttpRequest) -> Answer:
            return Answer(b"ok\n")

        async def readyz(request: HttpRequest) -> Answer:
            found = await find_out()
            lines = [("ready: " if found.ready else "not ready: ") + found.reason]
            if request.query.get("verbose", "0") not in ("", "0", "false"):
                roles = await _within(LOOK_TIMEOUT_S, looking, lambda: role_statuses(self._look(), self._reader.read()))
                lines += [_verbose_line(role) for role in roles or []]
            return Answer("\n".join([*lines, ""]).encode(), 200 if found.ready else 503)

        async def metrics(request: HttpRequest) -> Answer:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
            page = await _within(LOOK_TIMEOUT_S, looking, lambda: encode(self._registry))
            return _too_late() if page is None else Answer(page, content_type=content_type)

        async def status(request: HttpRequest) -> Answer:
            found = await find_out()
            gathered = await _within(LOOK_TIMEOUT_S, looking, lambda: self._gather(found))
            if gathered is None:
                return _too_late()
            return Answer(msgspec.json.encode(gathered), content_type="application/json")

        async def overview(request: HttpRequest) -> Answer:
            found = await find_out()
            shown = await _within(LOOK_TIMEOUT_S, looking, lambda: self._overviews.overview(self._gather(found)))
            return _too_late() if shown is None else Answer(msgspec.json.encode(shown), content_type="application/json")

        async def page(request: HttpRequest) -> Answer:
            return Answer(overview_pages.page(), content_type="text/html; charset=utf-8")

        return {
            "/": page,
            "/overview": overview,
            "/healthz": healthz,
            "/readyz": readyz,
            "/metrics": metrics,
            "/status": status,
        }

    def _gather(self, found: Readiness) -> ServiceStatus:
        return gather_status(self._look(), self._reader.read(), found, http=self.url)


def _too_late() -> Answer:
    return Answer(f"the figures could not be read within {LOOK_TIMEOUT_S} s\n".encode(), 503)


class _Running:
    def __init__(
        self,
        endpoints: Callable[[ThreadPoolExecutor, ThreadPoolExecutor], Mapping[str, Endpoint]],
        listeners: list[socket.socket],
        max_connections: int,
    ) -> None:
        self._listeners = listeners
        self._probing = ThreadPoolExecutor(1, "mmcached-probe")
        self._looking = ThreadPoolExecutor(2, "mmcached-look")
        self._server = HttpServer(endpoints(self._probing, self._looking), max_connections=max_connections)
        self._loop = asyncio.new_event_loop()
        self._serving: asyncio.Task[None] | None = None
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mmcached-http", daemon=True)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()
        if not self._is_up.wait(START_TIMEOUT_S) or not self.is_alive:
            raise ServiceUnavailable(f"the HTTP server did not come up within {START_TIMEOUT_S} s; see the log")

    def stop(self) -> None:
        if self.is_alive:
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join()
        if not self._loop.is_closed():
            self._loop.close()
        for pool in (self._probing, self._looking):
            pool.shutdown(cancel_futures=True)

    def _run(self) -> None:
        self._serving = self._loop.create_task(self._server.serve(self._listeners, self._is_up.set))
        try:
            self._loop.run_until_complete(self._serving)
        except asyncio.CancelledError:
            pass
        finally:
            self._loop.close()

    def _end(self) -> None:
        if self._serving is not None:
            self._serving.cancel()


async def _within(timeout_s: float, threads: ThreadPoolExecutor, question: Callable[[], ResultT]) -> ResultT | None:
    """Return the result of a blocking call, or None after `timeout_s`, when its thread is left to finish alone."""
    answer = asyncio.get_running_loop().run_in_executor(threads, question)
    try:
        done, _ = await asyncio.wait([answer], timeout=timeout_s)
        return answer.result() if done else None
    finally:
        answer.cancel()  # not started: it never runs; running: its result is dropped


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


def _listen_at(path: Path) -> NamedSocket:
    try:
        return NamedSocket(path, BACKLOG)
    except OSError as error:
        raise ConfigError("run_dir", str(path.parent), f"{path.name} cannot be bound: {error.strerror}") from error


def _num_connections(num_reserved: int) -> int:
    """Return how many connections leave enough descriptors for the children's pipes, logs and probes."""
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, (soft_limit - num_reserved) // 2))
