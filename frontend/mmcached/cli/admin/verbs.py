"""The commands that inspect a service and end it: ping, status, top, shm ls, shm gc, drain, flush.

Exit status of those that judge: 0 ready, 1 running but not ready, 3 no service in that directory. Imports neither torch
nor the HTTP server.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmcached.cli.admin.printing import (
    JsonOption,
    RunDirOption,
    console,
    directory_of,
    no_service,
    print_json,
    print_table,
    say,
)
from mmcached.cli.exit_status import NEGATIVE, OK
from mmcached.cli.progress import working
from mmcached.cli.terminal_text import shown
from mmcached.wire.errors import DeadlineExceeded

if TYPE_CHECKING:
    from mmcached.cli.watch.service_status import ServiceStatus

DRAIN_SLACK_S = 30.0
"""Additional wait beyond the service's own drain timeout: the roles end after the drain."""


def register(app: typer.Typer) -> None:
    app.command()(ping)
    app.command()(status)
    app.command()(top)
    app.command()(drain)
    app.command()(flush)
    shm = typer.Typer(help="Shared-memory segments of this user.", no_args_is_help=True)
    shm.command("ls")(shm_ls)
    shm.command("gc")(shm_gc)
    app.add_typer(shm, name="shm")


def ping(run_dir: RunDirOption = None) -> None:
    """Say whether the service works. Exit status 0: ready, 1: not ready, and why, 3: no service there."""
    found = _look(run_dir)
    say(f"{'ready' if found.ready else 'not ready'}: {found.reason}")
    raise typer.Exit(OK if found.ready else NEGATIVE)


def status(run_dir: RunDirOption = None, as_json: JsonOption = False) -> None:
    """Show processes, caches and faults. Works also when the service hangs. Exit status as `ping`."""
    found = _look(run_dir)
    if as_json:
        print_json(found)
    else:
        from mmcached.cli.watch.status_table import show_status

        show_status(found, console())
    raise typer.Exit(OK if found.ready else NEGATIVE)


def top(
    run_dir: RunDirOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end, as in a pipe.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.05, max=3600, metavar="SECONDS", help="From one frame to the next.")
    ] = 1.0,
) -> None:
    """Show the service live. Shows processes, hit rates, latencies, rings, leases, engines; q ends it."""
    from mmcached.cli.admin.observe import overview_at
    from mmcached.cli.watch.top import show
    from mmcached.cli.watch.top_frame import draw

    path, screen = directory_of(run_dir), console()
    if once or not screen.is_terminal:
        found = overview_at(path)
        if found is None:
            raise no_service(path)
        screen.print(draw(found))
        raise typer.Exit(OK if found.ready else NEGATIVE)
    show(lambda: overview_at(path), interval, screen, nobody=f"no service in {shown(str(path))}")


def shm_ls(as_json: JsonOption = False) -> None:
    """List the segments. Shows name, purpose, size, the writer and whether it lives, and the run directory."""
    from mmcached.cli.admin.shm_list import list_segments

    entries = list_segments()
    if as_json:
        print_json(entries)
    elif entries:
        rows = [
            [e.name, e.purpose, f"{e.nbytes:,}", e.state, f"{e.pid or ''} {e.process}".strip(), e.run_dir]
            for e in entries
        ]
        print_table(rows, "name", "purpose", "bytes", "writer", "process", "run directory")
    else:
        say("no segments")


def shm_gc(
    removes_all: Annotated[
        bool, typer.Option("--all", help="Also segments that the next service of a run directory would adopt.")
    ] = False,
) -> None:
    """Remove the segments of dead services. Prints their names.

    The cache of a service that died less than an hour ago stays: its next start in the same run directory adopts it.
    """
    from mmcached.cli.admin.shm_list import list_segments, remove_segments

    with working("removing what the dead have left in /dev/shm"):
        removed = remove_segments(removes_all=removes_all)
    for name in removed:
        say(f"removed {name}")
    for entry in list_segments():
        if entry.is_orphaned:
            say(f"left {entry.name}: the next service in {entry.run_dir} adopts it; --all removes it")


def drain(
    run_dir: RunDirOption = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="How long to wait.")
    ] = None,
) -> None:
    """End the service in order. Open requests are answered, new ones refused. Returns when it is gone."""
    from mmcached.cli.admin.observe import saved_config
    from mmcached.cli.serve.seat import supervisor_pid

    path = directory_of(run_dir)
    pid = supervisor_pid(path)
    if pid is None:
        raise no_service(path)
    timeout_s = saved_config(path).drain_timeout_s + DRAIN_SLACK_S if timeout is None else timeout
    started = time.monotonic()
    with working(f"draining the service in {path} (pid {pid})"):
        _terminate(path, pid, timeout_s)
    say(f"drained in {time.monotonic() - started:.1f} s")


def flush(
    run_dir: RunDirOption = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="How long to wait.")] = 30.0,
    epoch: Annotated[bool, typer.Option("--epoch", help="Weights changed: refuse records being computed now.")] = False,
    version: Annotated[
        str,
        typer.Option(
            "--version",
            metavar="NAME",
            help="As --epoch; and share with hosts that were flushed with this name, only.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Make the service forget everything cached. Reaches all roles; requests that run start over."""
    from mmcached.cli.serve.seat import supervisor_pid
    from mmcached.client import Client

    path = directory_of(run_dir)
    if supervisor_pid(path) is None:
        raise no_service(path)
    with (
        working(f"flushing all caches of {path}"),
        Client(path, connect_timeout_s=timeout, fail_open=False) as client,
    ):
        if epoch or version:
            client.invalidate(timeout_s=timeout, version=version)
        else:
            client.flush(timeout_s=timeout)
    say(f"flushed: version {version}" if version else "flushed, a new epoch has begun" if epoch else "flushed")


def _terminate(run_dir: Path, pid: int, timeout_s: float) -> None:
    """Signal the supervisor and wait for its end; DeadlineExceeded if it goes on draining."""
    from mmcached.cli.serve.pidfd import has_ended, open_pidfd, terminate
    from mmcached.cli.serve.seat import supervisor_pid

    try:
        pidfd = open_pidfd(pid)
    except ProcessLookupError:
        return
    try:
        # The pid was read before we held the pidfd: only now is it certain that it is still the supervisor.
        if supervisor_pid(run_dir) != pid:
            return
        terminate(pid, pidfd)
        if not has_ended(pid, pidfd, timeout_s):
            raise DeadlineExceeded(f"drain of the supervisor (pid {pid})", timeout_s)
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def _look(run_dir: Path | None) -> ServiceStatus:
    from mmcached.cli.admin.observe import look_at

    path = directory_of(run_dir)
    found = look_at(path)
    if found is None:
        raise no_service(path)
    return found
