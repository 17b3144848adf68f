"""What the service looks like from outside: one typed record, whoever gathers it and however it is shown.

    SupervisorView (processes) ─┐
    stats page (figures)        ├─► ServiceStatus ─► /status, `mmcached status`, the reasons of /readyz
    /proc (states)              ┘

Asks no role anything, so it works when the data path is wedged. `PageView` stands in for a supervisor that does not
answer: it takes what the page, the lock file and /proc tell.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from mmcached.wire.config import ServiceConfig
from mmcached.wire.stats import (
    EngineStats,
    FrontendStats,
    RoleName,
    ServiceStats,
    StatsT,
    SupervisorStats,
    WorkerStats,
    extend,
)

if TYPE_CHECKING:  # a command that is answered by the supervisor needs no page, with which numpy comes
    from mmcached.shm.stats.page import RoleSnapshot

SILENT_AFTER_S = 2.0
"""A heartbeat older than this is worth a word when the service is not ready. A long step is silent, too."""

State = Literal["starting", "running", "restarting", "failed", "ended", "stopped", "dead"]
Snapshots: TypeAlias = "Mapping[RoleName, RoleSnapshot]"


@dataclass(frozen=True, slots=True)
class RoleView:
    """One process as the supervisor knows it.

    Attributes:
        pid: None while there is no process.
        state: `restarting` waits for its backoff; `failed` was given up; `ended` has stopped in order.
        restarts: how often it was started again.
        started_at: wall-clock seconds (`time.time`) of the last start.
    """

    name: RoleName
    pid: int | None
    state: Literal["starting", "running", "restarting", "failed", "ended"]
    restarts: int = 0
    started_at: float | None = None


class SupervisorView(Protocol):
    """What the HTTP thread may ask the supervisor. Each answer is a snapshot, given at once, under no lock for long."""

    @property
    def run_dir(self) -> Path: ...

    @property
    def config(self) -> ServiceConfig: ...

    @property
    def is_draining(self) -> bool: ...

    def roles(self) -> list[RoleView]:
        """Return all roles that shall run, in the order in which they were started."""


class RoleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process. `state` is the supervisor's word, unless the kernel says `stopped` (SIGSTOP) or `dead`."""

    name: str
    pid: int | None
    state: State
    restarts: int = 0
    heartbeat_age_s: float | None = None
    up_since: str | None = None

    @property
    def complaint(self) -> str:
        """What is wrong with it, in words; empty if nothing is known to be."""
        who = self.name if self.pid is None else f"{self.name} (pid {self.pid})"
        match self.state:
            case "stopped":
                return f"{who} is stopped (state T){self._silence()}"
            case "dead":
                return f"{who} is dead{self._silence()}"
            case "restarting":
                return f"{who} is restarting (restart {self.restarts})"
            case "failed":
                return f"{who} died too often and was given up after {self.restarts} restarts"
            case "starting" | "ended":
                return f"{who} {'is starting' if self.state == 'starting' else 'has ended'}"
            case "running":
                age = self.heartbeat_age_s
                is_silent = age is not None and age > SILENT_AFTER_S
                return f"{who} lives, but its last heartbeat was {age:.1f} s ago" if is_silent else ""

    def _silence(self) -> str:
        return "" if self.heartbeat_age_s is None else f", last heartbeat {self.heartbeat_age_s:.1f} s ago"


class Readiness(msgspec.Struct, frozen=True):
    """Whether the service works, the reason if not, and how long ago that was found out."""

    ready: bool
    reason: str
    checked_ago_s: float = 0.0


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at once. `source`: gathered by the supervisor, or from the page because it did not answer.

    `http` is the address of the TCP port for health and metrics, "" if there is none.
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
    roles: list[RoleStatus]
    stats: ServiceStats


def gather_status(
    view: SupervisorView,
    snapshots: Snapshots,
    readiness: Readiness,
    *,
    source: Literal["supervisor", "page"] = "supervisor",
    http: str = "",
) -> ServiceStatus:
    """Put together what is known now."""
    return ServiceStatus(
        run_dir=str(view.run_dir),
        http=http,
        version=metadata.version("mmcached"),
        config_digest=view.config.digest(),
        ready=readiness.ready,
        reason=readiness.reason,
        checked_ago_s=readiness.checked_ago_s,
        draining=view.is_draining,
        source=source,
        roles=role_statuses(view, snapshots),
        stats=service_stats(snapshots),
    )


def role_statuses(view: SupervisorView, snapshots: Snapshots) -> list[RoleStatus]:
    """Return all roles; the supervisor leads if it has a slot in the page."""
    views = view.roles()
    supervisor = RoleName("supervisor")
    if supervisor in snapshots and all(role.name != supervisor for role in views):
        views = [_from_page(supervisor, snapshots[supervisor]), *views]
    return [_role_status(role, snapshots.get(role.name)) for role in views]


def service_stats(snapshots: Snapshots) -> ServiceStats:
    """Return the figures of all roles in one record."""
    frontend = _stats_of(snapshots, RoleName("frontend"), FrontendStats)
    engines = [
        msgspec.structs.replace(
            _stats_of(snapshots, role, EngineStats),
            workers=[
                _stats_of(snapshots, worker, WorkerStats)
                for worker in sorted(snapshots)
                if (worker.kind, worker.engine) == ("worker", role.engine)
            ],
        )
        for role in sorted(snapshots)
        if role.kind == "engine"
    ]
    return extend(frontend, ServiceStats, engines=engines)


def process_state(pid: int) -> str | None:
    """Return the letter of /proc for a process (`R`, `S`, `T` stopped, `Z` dead, …), or None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


class PageView:
    """A supervisor's view, made from the stats page alone; for when the supervisor does not answer."""

    def __init__(self, run_dir: Path, config: ServiceConfig, snapshots: Snapshots) -> None:
        self.run_dir = run_dir
        self.config = config
        self._snapshots = snapshots

    @property
    def is_draining(self) -> bool:
        return bool(_stats_of(self._snapshots, RoleName("supervisor"), SupervisorStats).draining)

    def roles(self) -> list[RoleView]:
        return [_from_page(role, snapshot) for role, snapshot in self._snapshots.items()]


def _from_page(role: RoleName, snapshot: RoleSnapshot) -> RoleView:
    return RoleView(
        name=role,
        pid=snapshot.pid,
        state="running" if snapshot.is_attached else "ended",
        restarts=snapshot.num_attached - 1,
        started_at=time.time() - snapshot.attached_s,
    )


def _role_status(role: RoleView, snapshot: RoleSnapshot | None) -> RoleStatus:
    # The slot may still speak of a former process of this role.
    is_its = snapshot is not None and snapshot.pid == role.pid
    return RoleStatus(
        name=str(role.name),
        pid=role.pid,
        state=_state_of(role),
        restarts=role.restarts,
        heartbeat_age_s=round(snapshot.heartbeat_age_s, 3) if snapshot is not None and is_its else None,
        up_since=None if role.started_at is None else _as_date(role.started_at),
    )


def _state_of(role: RoleView) -> State:
    if role.pid is None or role.state in ("restarting", "failed", "ended"):
        return role.state
    match process_state(role.pid):
        case "T" | "t":
            return "stopped"
        case None | "Z" | "X":
            return "dead"
        case _:
            return role.state


def _as_date(wall_clock_s: float) -> str:
    return datetime.fromtimestamp(wall_clock_s, UTC).isoformat(timespec="seconds")


def _stats_of(snapshots: Snapshots, role: RoleName, kind: type[StatsT]) -> StatsT:
    found = snapshots.get(role)
    return found.stats if found is not None and isinstance(found.stats, kind) else kind()
