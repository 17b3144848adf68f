"""Gathers the state of a service into one typed record.

    ServiceView (processes)  ─┐
    stats page (figures)      ├─► ServiceStatus ─► /status, `mmcached status`, the reasons of /readyz
    /proc (states)           ─┘

Sends no message to a role, so it works when the data path is stuck. `view_of_page` replaces the view of a supervisor
that does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from mmcached.cli.admin.client_locks import living_clients
from mmcached.cli.installed import installed_version
from mmcached.cli.watch.latencies import LatencyStatus, histograms_of, latencies_of
from mmcached.wire.config import ServiceConfig
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import FrontendStats, RoleName, ServiceStats, SupervisorStats

if TYPE_CHECKING:  # a command that the supervisor answers must not import numpy, which the page needs
    from mmcached.shm.stats.page import RoleSnapshot

SILENT_AFTER_S = 5.0
"""Age of a heartbeat that is reported when the service is not ready. A long step is silent, too."""

State = Literal["starting", "running", "restarting", "failed", "ended", "stopped", "dead"]
Snapshots: TypeAlias = "Mapping[RoleName, RoleSnapshot]"


class RoleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process.

    Attributes:
        name: As "worker 0.1".
        pid: None while there is no process.
        state: State in the supervisor: `restarting` waits for its backoff, `failed` was given up, `ended` has stopped
            normally; unless the kernel reports `stopped` (SIGSTOP) or `dead`.
        restarts: Number of restarts.
        up_since: Time of its last start, ISO 8601 in UTC.
    """

    name: str
    pid: int | None
    state: State
    restarts: int = 0
    heartbeat_age_s: float | None = None
    up_since: str | None = None

    @property
    def complaint(self) -> str:
        """The problem of this process as text; empty if none is known."""
        who = self.name if self.pid is None else f"{self.name} (pid {self.pid})"
        match self.state:
            case "stopped":
                return f"{who} is stopped (state T){self._silence()}"
            case "dead":
                return f"{who} is dead{self._silence()}"
            case "restarting":
                return f"{who} is restarting (restarts so far: {self.restarts})"
            case "failed":
                return f"{who} died too often and was given up after {self.restarts} restarts"
            case "starting" | "ended":
                return f"{who} {'is starting' if self.state == 'starting' else 'has ended'}"
            case "running":
                age = self.heartbeat_age_s
                is_silent = age is not None and age > SILENT_AFTER_S
                return f"{who} is alive, but its last heartbeat was {age:.1f} s ago" if is_silent else ""

    def _silence(self) -> str:
        return "" if self.heartbeat_age_s is None else f", last heartbeat {self.heartbeat_age_s:.1f} s ago"


@dataclass(frozen=True, slots=True)
class ServiceView:
    """The supervisor's view of its service at one moment.

    Attributes:
        roles: All configured roles, in the order of their start, without heartbeats and without the kernel's states.
        is_ready: The supervisor's last probe has succeeded, and the service takes requests.
    """

    run_dir: Path
    config: ServiceConfig
    is_draining: bool
    roles: list[RoleStatus]
    is_ready: bool = False


class Readiness(msgspec.Struct, frozen=True):
    """The result of a readiness check: whether the service works, the reason, and the age of the result."""

    ready: bool
    reason: str
    checked_ago_s: float = 0.0


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a service.

    Attributes:
        http: URL of the TCP port for health and metrics, "" if there is none.
        source: "supervisor", or "page" if the supervisor did not answer.
        uptime_s: Uptime of the supervisor.
        own_clients: The service's own engines and workers among the clients in `stats`.
        latency: Quantiles of `hit`, `put`, `encode`, `step` and `queue`, where measured.
        nursery_budget_bytes: The share of the store for nurseries, 0 without nurseries.
    """

    run_dir: str
    http: str = ""
    version: str
    config_digest: str
    ready: bool
    reason: str
    checked_ago_s: float
    draining: bool
    source: Literal["supervisor", "page"] = "supervisor"
    uptime_s: float | None = None
    own_clients: int = 0
    nursery_budget_bytes: int = 0
    roles: list[RoleStatus]
    latency: dict[str, LatencyStatus] = {}
    stats: ServiceStats


def gather_status(
    view: ServiceView,
    snapshots: Snapshots,
    readiness: Readiness,
    *,
    source: Literal["supervisor", "page"] = "supervisor",
    http: str = "",
) -> ServiceStatus:
    stats = stats_of_all(snapshots)
    roles = role_statuses(view, snapshots)
    pids = {role.pid for role in roles}
    supervisor = snapshots.get(RoleName("supervisor"))
    return ServiceStatus(
        run_dir=str(view.run_dir),
        http=http,
        version=installed_version(),
        config_digest=view.config.digest(),
        ready=readiness.ready,
        reason=readiness.reason,
        checked_ago_s=readiness.checked_ago_s,
        draining=view.is_draining,
        source=source,
        uptime_s=None if supervisor is None else round(supervisor.attached_s, 3),
        own_clients=sum(pid in pids for pid, _ in living_clients(RunDir(view.run_dir))),
        nursery_budget_bytes=view.config.store_nursery_bytes,
        roles=roles,
        latency=latencies_of(histograms_of(stats)),
        stats=stats,
    )


def stats_of_all(snapshots: Snapshots) -> ServiceStats:
    from mmcached.shm.stats.service import service_stats, stats_of

    frontend = stats_of(snapshots, RoleName("frontend"), FrontendStats)
    engines = sorted(role.engine for role in snapshots if role.kind == "engine")
    return service_stats(snapshots, frontend, engines)


def role_statuses(view: ServiceView, snapshots: Snapshots) -> list[RoleStatus]:
    """Return all roles with the states of kernel and page; the supervisor first if it has a slot in the page."""
    by_name = {str(name): snapshot for name, snapshot in snapshots.items()}
    roles = view.roles
    supervisor = by_name.get("supervisor")
    if supervisor is not None and all(role.name != "supervisor" for role in roles):
        roles = [_status_of_slot("supervisor", supervisor), *roles]
    return [_completed(role, by_name.get(role.name)) for role in roles]


def view_of_page(run_dir: Path, config: ServiceConfig, snapshots: Snapshots) -> ServiceView:
    """Return the view that the page alone gives, for a supervisor that does not answer."""
    from mmcached.shm.stats.service import stats_of

    is_draining = stats_of(snapshots, RoleName("supervisor"), SupervisorStats).draining > 0
    roles = [_status_of_slot(str(name), snapshot) for name, snapshot in snapshots.items()]
    return ServiceView(run_dir, config, is_draining, roles)


def process_state(pid: int) -> str | None:
    """Return a process's state letter in /proc (`R`, `S`, `T` stopped, `Z` dead, …).

    None: there is no process. An empty text: this process has no descriptor left to read the state.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:
        return ""


def date_of(wall_clock_s: float) -> str:
    """Return a time in the form of `RoleStatus.up_since`."""
    return datetime.fromtimestamp(wall_clock_s, UTC).isoformat(timespec="seconds")


def _status_of_slot(name: str, snapshot: RoleSnapshot) -> RoleStatus:
    return RoleStatus(
        name=name,
        pid=snapshot.pid,
        state="running" if snapshot.is_attached else "ended",
        restarts=snapshot.num_attached - 1,
        up_since=date_of(time.time() - snapshot.attached_s),
    )


def _completed(role: RoleStatus, snapshot: RoleSnapshot | None) -> RoleStatus:
    # The slot may still belong to an earlier process of this role.
    is_its = snapshot is not None and snapshot.pid == role.pid
    age_s = round(snapshot.heartbeat_age_s, 3) if snapshot is not None and is_its else None
    return msgspec.structs.replace(role, state=_state_of(role), heartbeat_age_s=age_s)


def _state_of(role: RoleStatus) -> State:
    if role.pid is None or role.state in ("restarting", "failed", "ended"):
        return role.state
    match process_state(role.pid):
        case "T" | "t":
            return "stopped"
        case None | "Z" | "X":
            return "dead"
        case _:
            return role.state
