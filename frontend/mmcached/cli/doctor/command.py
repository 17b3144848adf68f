"""The command `mmcached doctor`: prints a table on a terminal, plain lines in a pipe, or JSON.

Exit status: 0, or 1 if there is a problem; warnings do not count.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmcached.cli.admin.printing import JsonOption, RunDirOption, console, directory_of, print_json, say
from mmcached.cli.exit_status import NEGATIVE, OK
from mmcached.cli.progress import working
from mmcached.cli.terminal_text import shown
from mmcached.wire.errors import MmcachedError

if TYPE_CHECKING:
    from mmcached.cli.doctor.finding import Finding
    from mmcached.wire.config import ServiceConfig

_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


def doctor(
    run_dir: RunDirOption = None,
    torch: Annotated[bool, typer.Option("--torch", help="Load torch, in another process, and ask it for devices.")] = (
        False
    ),
    as_json: JsonOption = False,
) -> None:
    """Check this host, and say how to fix problems. Also tries what runs. Exit status 1: a problem."""
    from mmcached.cli.doctor.checkup import run_checks
    from mmcached.cli.doctor.finding import CheckedHost

    path = directory_of(run_dir)
    with working("checking this host") as tell:
        found = list(run_checks(CheckedHost(path, _config_of(path), loads_torch=torch), tell))
    if as_json:
        print_json([{"check": name, "level": f.level, "what": f.what, "fix": f.fix} for name, f in found])
    elif sys.stdout.isatty():
        _show_table(found)
    else:
        for name, f in found:
            say(f"{f.level}: {name}: {f.what}{f'; fix: {f.fix}' if f.fix else ''}")
    raise typer.Exit(NEGATIVE if any(finding.level == "problem" for _, finding in found) else OK)


def _show_table(found: list[tuple[str, Finding]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("", "check", "found", "fix")
    for name, f in found:
        table.add_row(Text(f.level, _STYLES[f.level]), name, Text(shown(f.what)), Text(shown(f.fix)))
    console().print(table)


def _config_of(run_dir: Path) -> ServiceConfig:
    """Return the settings of the service here; the defaults if unreadable, for which a check gives the reason."""
    from mmcached.cli.admin.observe import saved_config
    from mmcached.wire.config import ServiceConfig

    try:
        return saved_config(run_dir)
    except MmcachedError:
        return ServiceConfig()
