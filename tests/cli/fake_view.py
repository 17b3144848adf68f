"""A supervisor that says what a test tells it to, a page with some roles on it, and requests over real HTTP."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

from rich.console import Console

from mmcached.cli.watch.service_status import RoleStatus, ServiceStatus, ServiceView, State
from mmcached.cli.watch.status_table import show_status
from mmcached.shm.stats.page import StatsPage, StatsPageReader, StatsPageWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import RoleName

FRONTEND, ENGINE, WORKER = RoleName("frontend"), RoleName("engine"), RoleName("worker", 0, 1)
HTTP_DEADLINE_S = 60.0


def a_role(
    name: RoleName, pid: int | None, state: State, *, restarts: int = 0, up_since: str | None = None
) -> RoleStatus:
    return RoleStatus(name=str(name), pid=pid, state=state, restarts=restarts, up_since=up_since)


@dataclass
class FakeView:
    """What a supervisor knows: call it, as those do who look."""

    run_dir: Path
    config: ServiceConfig = field(default_factory=lambda: ServiceConfig(probe_timeout_s=0.2, http_port=0))
    is_draining: bool = False
    given: list[RoleStatus] = field(default_factory=list)
    is_ready: bool = False

    def __call__(self) -> ServiceView:
        return ServiceView(self.run_dir, self.config, self.is_draining, list(self.given), self.is_ready)


def drawn(*what: Any, width: int = 120) -> str:
    """Return what a console of that width shows of a status, or of anything that rich prints."""
    console = Console(width=width, file=(text := io.StringIO()))
    for each in what:
        show_status(each, console) if isinstance(each, ServiceStatus) else console.print(each)
    return text.getvalue()


@contextmanager
def page_of(run_dir: Path, *roles: RoleName) -> Iterator[tuple[StatsPageReader, dict[RoleName, StatsPageWriter]]]:
    """Make a page in which these roles, all of them this process, are attached."""
    with ExitStack() as stack:
        page = stack.enter_context(StatsPage.create(RunDir(run_dir).stats_page))
        writers = {role: stack.enter_context(StatsPageWriter(page.path, role)) for role in roles}
        yield stack.enter_context(StatsPageReader(page.path)), writers


def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, str, Message[str, str]]:
    """Return status, text and headers of an answer, whatever its status."""
    request = urllib.request.Request(url, headers=headers or {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=HTTP_DEADLINE_S) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers
