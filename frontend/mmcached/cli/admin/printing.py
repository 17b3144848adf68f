"""Output common to all commands, for people and for programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from mmcached.cli.exit_status import NO_SERVICE
from mmcached.cli.terminal_text import json_shown, shown, shown_lines
from mmcached.wire.paths import RUN_DIR_VARIABLE, default_run_dir

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_RUN_DIR = (
    f"default: ${RUN_DIR_VARIABLE}, else mmcached below $XDG_RUNTIME_DIR or /run/user/UID, for root /run/mmcached"
)
RunDirOption = Annotated[
    Path | None,
    # An invalid directory is reported by the typed error of `RunDir`, as everywhere.
    typer.Option("--run-dir", help=f"Directory of the service; {DEFAULT_RUN_DIR}.", readable=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def directory_of(run_dir: Path | None) -> Path:
    return (run_dir or default_run_dir()).absolute()


def no_service(path: Path) -> typer.Exit:
    """Report that no service runs there, and return the exception that ends the command."""
    say(f"no service in {path}; start one: mmcached serve --run-dir {path}", err=True)
    return typer.Exit(NO_SERVICE)


def say(text: str, *, err: bool = False) -> None:
    """Print lines, with unprintable characters escaped."""
    typer.echo(shown_lines(text), err=err)


def print_json(value: object) -> None:
    typer.echo(json_shown(msgspec.json.format(msgspec.json.encode(value)).decode()))


def print_table(rows: list[list[str]], *headings: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=bool(headings))
    for heading in headings:
        table.add_column(heading, overflow="fold")  # keys must not be truncated
    for row in rows:
        # `Text`, so that brackets in names are not parsed as markup
        table.add_row(*(Text(shown(cell)) for cell in row))
    console().print(table)


def console() -> Console:
    from rich.console import Console

    # Without a terminal rich would take 80 columns, which most tables exceed.
    return Console() if sys.stdout.isatty() else Console(width=140)
