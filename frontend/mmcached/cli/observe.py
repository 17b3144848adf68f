"""How a command looks at a running service from outside: through its HTTP port, else through what it leaves behind.

    supervisor.lock held?   no ──► nobody runs here: None
          │ yes
    GET /status             answered ──► the supervisor's word
          │ not within the deadline
    stats page, /proc, a probe of our own ──► `source = "page"`, and the reason says that the supervisor does not answer

Imports neither uvicorn nor starlette: a verb must start fast.
"""

from __future__ import annotations

import contextlib
import http.client
import urllib.request
from pathlib import Path

import msgspec

from mmcached.cli.readiness import ReadinessCheck
from mmcached.cli.service_status import PageView, Readiness, ServiceStatus, Snapshots, gather_status, process_state
from mmcached.shm.lock_file import is_held
from mmcached.shm.stats_page import StatsPageReader
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, ServiceUnavailable
from mmcached.wire.paths import RunDir

HTTP_SLACK_S = 2.0
"""How much longer than the probe an answer of the supervisor may take."""


class Announcement(msgspec.Struct, frozen=True):
    """What `http.json` in the run directory says: where to ask, and which process answers there."""

    url: str
    pid: int


def supervisor_pid(run_dir: Path) -> int | None:
    """Return the pid of the service's supervisor, or None if no service runs there.

    Raises:
        ServiceUnavailable: it is just starting and has not said its pid yet.
    """
    lock = RunDir(run_dir).supervisor_lock
    if not is_held(lock):
        return None
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(lock.read_text())
    if not is_held(lock):
        return None  # it ended while we looked
    raise ServiceUnavailable(f"the service in {run_dir} is just starting; try again")


def look_at(run_dir: Path) -> ServiceStatus | None:
    """Return what is known of the service, whatever state it is in; None if none runs there. Bounded in time."""
    pid = supervisor_pid(run_dir)
    if pid is None:
        return None
    config = saved_config(run_dir)
    timeout_s = 2 * config.probe_timeout_s + HTTP_SLACK_S
    try:
        return msgspec.json.decode(fetch(run_dir, "/status", timeout_s), type=ServiceStatus)
    except (OSError, http.client.HTTPException, msgspec.DecodeError, MmcachedError) as error:
        silence = f"the supervisor (pid {pid}) does not answer ({_in_words(pid, error)})"
    snapshots, note = _read_page(run_dir)
    view = PageView(run_dir, config, snapshots)
    found = ReadinessCheck(view, lambda: snapshots).check()
    reason = "; ".join(filter(None, (silence, note, found.reason)))
    return gather_status(view, snapshots, Readiness(found.ready, reason), source="page")


def fetch(run_dir: Path, path: str, timeout_s: float) -> bytes:
    """Return what the service's HTTP port says, whatever its status code.

    Raises:
        ServiceUnavailable: the service has announced no port.
        OSError, HTTPException: no answer.
    """
    try:
        announced = msgspec.json.decode(RunDir(run_dir).http_info.read_bytes(), type=Announcement)
    except FileNotFoundError:
        raise ServiceUnavailable("it has announced no HTTP port") from None
    # A proxy of the environment must not see, and cannot reach, what is on loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _KeepErrors)
    with opener.open(announced.url + path, timeout=timeout_s) as answer:
        content: bytes = answer.read()
    return content


def saved_config(run_dir: Path) -> ServiceConfig:
    """Return the configuration that the service in this directory was started with; defaults if none was yet."""
    path = RunDir(run_dir).config
    return ServiceConfig.load(path) if path.exists() else ServiceConfig()


class _KeepErrors(urllib.request.HTTPErrorProcessor):
    """Returns an answer with status 503 like any other, instead of raising it."""

    def http_response(self, request: object, response: http.client.HTTPResponse) -> http.client.HTTPResponse:
        return response


def _read_page(run_dir: Path) -> tuple[Snapshots, str]:
    """Return what the page says, and what kept us from reading it."""
    try:
        with StatsPageReader(RunDir(run_dir).stats_page) as reader:
            return reader.read(), ""
    except MmcachedError as error:
        return {}, str(error)


def _in_words(pid: int, error: Exception) -> str:
    if process_state(pid) in ("T", "t"):
        return "it is stopped, state T"
    return str(error) or type(error).__name__
