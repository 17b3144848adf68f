"""Reads the status of a service from outside: over its HTTP socket, else from its stats page.

A free seat means that no service runs (None). If the supervisor does not answer within the deadline, the stats page,
/proc and a probe are read: `source = "page"`, and the reason says so. Uses only the unix socket in the run directory,
which other users cannot replace. Modules that import numpy, as the page does, are imported late: a command that the
supervisor answers must start fast.
"""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from mmcached.cli.serve.seat import supervisor_pid
from mmcached.cli.watch.service_status import (
    Readiness,
    ServiceStatus,
    Snapshots,
    gather_status,
    process_state,
    view_of_page,
)
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, ServiceUnavailable
from mmcached.wire.paths import RunDir

if TYPE_CHECKING:
    from mmcached.cli.watch.overview import Overview

AnswerT = TypeVar("AnswerT", bound=msgspec.Struct)
HTTP_SLACK_S = 2.0
"""Additional time for the supervisor's answer beyond the probe's deadline."""


def look_at(run_dir: Path) -> ServiceStatus | None:
    """Return the status of a service in any state; None if none runs there. Bounded in time."""
    config = saved_config(run_dir)
    found = _ask(run_dir, "/status", ServiceStatus, config)
    return _status_of_page(run_dir, config, found) if isinstance(found, str) else found


def overview_at(run_dir: Path) -> Overview | None:
    """Return a frame of the service, as on its web page, or None.

    Rates are computed by the supervisor: while it does not answer there are only totals.
    """
    from mmcached.cli.watch.overview import Overview, look_closely, overview_of
    from mmcached.cli.watch.store_readers import store_readers

    config = saved_config(run_dir)
    found = _ask(run_dir, "/overview", Overview, config)
    if isinstance(found, str):
        return overview_of(look_closely(_status_of_page(run_dir, config, found)), None, store_readers(run_dir))
    return found


def fetch(run_dir: Path, path: str, timeout_s: float) -> bytes:
    """Return the body of the HTTP socket's answer, for every status code.

    Raises:
        ServiceUnavailable, ConfigError: As `RunDir.check`.
        OSError, HTTPException: No answer.
    """
    directory = RunDir(run_dir)
    directory.check()
    connection = _UnixConnection(directory.http_socket, timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def saved_config(run_dir: Path) -> ServiceConfig:
    """Return the configuration with which the service in this directory was started; defaults if there was none."""
    directory = RunDir(run_dir)
    try:
        directory.check()
    except ServiceUnavailable:
        return ServiceConfig()
    return ServiceConfig.load(directory.config) if directory.config.exists() else ServiceConfig()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _ask(run_dir: Path, path: str, kind: type[AnswerT], config: ServiceConfig) -> AnswerT | str | None:
    """Return the supervisor's answer, or the reason why there is none; None if no service runs there."""
    try:
        pid = supervisor_pid(run_dir)
    except ServiceUnavailable as error:
        return str(error)
    if pid is None:
        return None
    try:
        return msgspec.json.decode(fetch(run_dir, path, 2 * config.probe_timeout_s + HTTP_SLACK_S), type=kind)
    except (OSError, http.client.HTTPException, msgspec.DecodeError, MmcachedError) as error:
        return f"the supervisor (pid {pid}) does not answer ({_in_words(pid, error)})"


def _status_of_page(run_dir: Path, config: ServiceConfig, silence: str) -> ServiceStatus:
    """Return the status from page, /proc and a probe; `silence` is why the supervisor does not answer."""
    from mmcached.cli.watch.readiness import ReadinessCheck

    snapshots, note = _read_page(run_dir)
    view = view_of_page(run_dir, config, snapshots)
    found = ReadinessCheck(lambda: view, lambda: snapshots).check()
    reason = "; ".join(filter(None, (silence, note, found.reason)))
    return gather_status(view, snapshots, Readiness(found.ready, reason), source="page")


def _read_page(run_dir: Path) -> tuple[Snapshots, str]:
    from mmcached.shm.stats.page import StatsPageReader

    try:
        with StatsPageReader(RunDir(run_dir).stats_page) as reader:
            return reader.read(), ""
    except MmcachedError as error:
        return {}, str(error)


def _in_words(pid: int, error: Exception) -> str:
    if process_state(pid) in ("T", "t"):
        return "it is stopped, state T"
    return str(error) or type(error).__name__
