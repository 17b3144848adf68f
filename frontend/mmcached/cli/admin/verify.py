"""The command `verify`, which has all hosts of a store recompute a sample of their hits.

Exit status: 0 no difference, 1 a hit differed, 3 no service in that directory.
"""

from __future__ import annotations

import select
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from mmcached.cli.admin.printing import (
    JsonOption,
    RunDirOption,
    directory_of,
    no_service,
    print_json,
    print_table,
    say,
)
from mmcached.cli.exit_status import NEGATIVE, OK
from mmcached.cli.progress import working
from mmcached.cli.terminal_text import shown

if TYPE_CHECKING:
    from mmcached.client import Client

RENEW_S = 1.0


class Report(msgspec.Struct, frozen=True):
    """What a verification has found: numbers of hits, and the names that the store refuses now."""

    verified: int
    different: int
    refused: list[str]


def register(app: typer.Typer) -> None:
    app.command()(verify)


def verify(
    sample: Annotated[
        float, typer.Option("--sample", min=0.0, max=1.0, metavar="SHARE", help="Share of the hits to recompute.")
    ] = 0.01,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.0, help="How long; without it until Ctrl-C.", show_default=False)
    ] = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have hosts recompute a sample of their hits, and compare both. vLLM, Transformers and the service's encoders do
    so, as long as this command runs. A name whose hits differ is not shared until the next flush. Exit status 0: no
    difference, 1: some.
    """
    from mmcached.cli.serve.seat import supervisor_pid
    from mmcached.client import Client

    path = directory_of(run_dir)
    if supervisor_pid(path) is None:
        raise no_service(path)
    with Client(path, fail_open=False) as client:
        report = watch(client, sample, inf if seconds is None else seconds)
    if as_json:
        print_json(report)
    else:
        _show(report, path)
    raise typer.Exit(NEGATIVE if report.different else OK)


def watch(client: Client, sample: float, seconds: float) -> Report:
    """Have hits recomputed for a time, or until a signal; return the figures of that time."""
    from mmcached.wire.process.signals import StopFlag

    end = time.monotonic() + seconds
    with StopFlag() as stop, working("hosts recompute a sample of their hits") as tell:
        first = now = client.verify(sample)
        while not stop.is_set and (left_s := end - time.monotonic()) > 0:
            select.select([stop], [], [], min(left_s, RENEW_S))
            now = client.verify(sample)
            tell(f"{now.verified - first.verified:,} hits recomputed, {now.different - first.different:,} differed")
        now = client.verify(0.0)
    return Report(now.verified - first.verified, now.different - first.different, now.refused)


def _show(report: Report, run_dir: Path) -> None:
    from mmcached.cache.name_files import name_in, read_name

    hits = "hit" if report.verified == 1 else "hits"
    say(f"{report.verified:,} {hits} recomputed, {report.different:,} differed")
    for name in report.refused:
        say(f"not shared until the next flush: {shown(name)}")
        known = name_in(name)
        rows = None if known is None else read_name(run_dir, known)
        if rows is not None:
            print_table([[row, str(value)] for row, value in rows.items() if value is not None], "its name has", "")
