"""Prints what a verb has found, for people and for programs; and what all verbs say alike."""

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
    # What is wrong with it says the typed error of whoever opens it, here as everywhere.
    typer.Option("--run-dir", help=f"Directory of the service; {DEFAULT_RUN_DIR}.", readable=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def directory_of(run_dir: Path | None) -> Path:
    return (run_dir or default_run_dir()).absolute()


def no_service(path: Path) -> typer.Exit:
    """Say that nothing runs there, and return what ends the command."""
    say(f"no service in {path}; start one: mmcached serve --run-dir {path}", err=True)
    return typer.Exit(NO_SERVICE)


def say(text: str, *, err: bool = False) -> None:
    """Print lines; what does not print is escaped."""
    typer.echo(shown_lines(text), err=err)


def print_json(value: object) -> None:
    typer.echo(json_shown(msgspec.json.format(msgspec.json.encode(value)).decode()))


def print_table(rows: list[list[str]], *headings: str) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=bool(headings))
    for heading in headings:
        table.add_column(heading, overflow="fold")  # a name that is cut is of no use
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))  # a name with brackets is no markup
    console().print(table)


def console() -> Console:
    from rich.console import Console

    # Off a terminal rich would take 80 columns, which most tables exceed.
    return Console() if sys.stdout.isatty() else Console(width=140)
