"""The commands of `mmcached ray`: `up` places services and encoders, `status` shows them, `down` removes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmcached.cli.admin.printing import JsonOption, print_json, print_table, say
from mmcached.cli.exit_status import NEGATIVE, OK
from mmcached.cli.progress import working
from mmcached.cli.ray.placed_config import read

if TYPE_CHECKING:
    from mmcached.cli.ray.placement import PlacedActor, Placement

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file that describes the placement.")]
TimeoutOption = Annotated[float, typer.Option("--timeout-s", min=1.0, help="How long to wait.")]


def register(app: typer.Typer) -> None:
    ray = typer.Typer(help="Encoders and services on a Ray cluster.", no_args_is_help=True)
    ray.command()(up)
    ray.command()(status)
    ray.command()(down)
    app.add_typer(ray, name="ray")


def up(file: ConfigArgument, timeout_s: TimeoutOption = 180.0) -> None:
    """Start missing encoders and services. Returns when all are ready."""
    with _placement(file) as placement:
        _print(placement.up(timeout_s))


def status(file: ConfigArgument, as_json: JsonOption = False) -> None:
    """Show encoders and services. Exit status 1 if one does not answer."""
    with _placement(file) as placement:
        placed = placement.status()
    if as_json:
        print_json([each._asdict() for each in placed])
    else:
        _print(placed)
    raise typer.Exit(OK if all(each.node for each in placed) else NEGATIVE)


def down(file: ConfigArgument, timeout_s: TimeoutOption = 90.0) -> None:
    """End all services and encoders of the file's namespace. Open requests end first."""
    with _placement(file) as placement:
        say(f"{placement.down(timeout_s)} ended")


@contextmanager
def _placement(file: Path) -> Iterator[Placement]:
    config = read(file)
    from mmcached.cli.ray.placement import Placement  # which imports torch

    with working(f"reaching the Ray cluster at {config.address}"):
        placement = Placement(config)
    try:
        yield placement
    finally:
        placement.close()


def _print(placed: list[PlacedActor]) -> None:
    print_table([list(each) for each in placed], "actor", "node", "")
