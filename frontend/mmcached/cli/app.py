"""The command line: parses, then hands over. Every verb's work is in a module of its own."""

from __future__ import annotations

import logging
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError
from mmcached.wire.paths import default_run_dir

app = typer.Typer(
    name="mmcached",
    help="Caching for multimodal model serving: process once, ship once, encode once, compute a prefix once.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RunDirOption = Annotated[
    Path | None, typer.Option("--run-dir", help="Directory of the service's sockets and locks (short path, mode 0700).")
]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="JSON file with ServiceConfig fields.")]
WorkersOption = Annotated[int | None, typer.Option("--workers", min=1, max=16, help="Worker processes (world_size).")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda or cuda:<index>.")]


@app.command()
def serve(
    run_dir: RunDirOption = None,
    config: ConfigOption = None,
    workers: WorkersOption = None,
    device: DeviceOption = None,
) -> None:
    """Start the service: frontend, engine and workers. Prints one line when ready; SIGTERM drains."""
    from mmcached.cli.supervisor import Supervisor

    chosen = _configuration(config, workers, device)
    _set_up_logging("supervisor")
    with Supervisor(run_dir or default_run_dir(), chosen) as supervisor:
        status = supervisor.run()
    raise typer.Exit(status)


@app.command()
def demo(
    images: Annotated[Path | None, typer.Option("--images", help="Your own photographs: a directory.")] = None,
    users: Annotated[int, typer.Option("--users", min=1, max=64, help="Concurrent conversations.")] = 4,
    turns: Annotated[int, typer.Option("--turns", min=1, max=32, help="Turns of each conversation.")] = 4,
    workers: WorkersOption = None,
    device: DeviceOption = None,
) -> None:
    """Play conversations about photographs with all caches on, then off, and prove that the answers are the same."""
    from mmcached.cli.demo.run import run_demo

    raise typer.Exit(run_demo(_configuration(None, workers, device), images=images, num_users=users, num_turns=turns))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(metadata.version("mmcached"))


@app.command(hidden=True)
def frontend(run_dir: Annotated[Path, typer.Option("--run-dir")]) -> None:
    """Run the frontend role alone (started by `serve`)."""
    from mmcached.frontend.server import main as run

    _set_up_logging("frontend")
    raise typer.Exit(run(run_dir))


@app.command(hidden=True)
def engine(
    run_dir: Annotated[Path, typer.Option("--run-dir")], index: Annotated[int, typer.Option("--index", min=0)] = 0
) -> None:
    """Run the engine role alone (started by `serve`)."""
    from mmcached.engine.server import main as run

    _set_up_logging(f"engine {index}")
    raise typer.Exit(run(run_dir, index))


@app.command(hidden=True)
def worker(
    run_dir: Annotated[Path, typer.Option("--run-dir")],
    rank: Annotated[int, typer.Option("--rank", min=0)],
    index: Annotated[int, typer.Option("--index", min=0)] = 0,
) -> None:
    """Run one worker alone (started by `serve`)."""
    from mmcached.worker.server import main as run

    _set_up_logging(f"worker {rank}")
    raise typer.Exit(run(run_dir, index, rank))


def main() -> NoReturn:
    """Run the command line; a typed error becomes one line on stderr and exit status 1."""
    try:
        app()
    except MmcachedError as error:
        sys.stderr.write(f"mmcached: {error.code}: {error}\n")
        sys.exit(1)
    sys.exit(0)


def _configuration(path: Path | None, workers: int | None, device: str | None) -> ServiceConfig:
    chosen = ServiceConfig() if path is None else ServiceConfig.load(path)
    changes = {name: value for name, value in (("world_size", workers), ("device", device)) if value is not None}
    changed = msgspec.structs.asdict(chosen) | changes
    return ServiceConfig(**changed)


def _set_up_logging(role: str) -> None:
    level = os.environ.get("MMC_LOG_LEVEL", "WARNING").upper()
    line = f"%(asctime)s %(levelname)s {role}[{os.getpid()}] %(message)s"
    logging.basicConfig(level=level, format=line, stream=sys.stderr)
