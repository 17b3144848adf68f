"""Play the workload twice, with all caches on and with all off, and compare every bit."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mmcached.cli.demo.killing import Survival, kill_frontend
from mmcached.cli.demo.photos import load_photos
from mmcached.cli.demo.report import Measured, differences, make_table, proof_line, survival_line
from mmcached.cli.demo.workload import Turn, conversations, num_requests, play
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError


def all_caches_off(config: ServiceConfig) -> ServiceConfig:
    """Return the same service without any of the four caches: every request computes all of its own."""
    return msgspec.structs.replace(
        config,
        mm_processor_cache_gb=0.0,
        encoder_cache_scope="request",
        enable_prefix_caching=False,
        enable_tensor_prefix_cache=False,
    )


def run_demo(config: ServiceConfig, *, images: Path | None, num_users: int, num_turns: int) -> int:
    """Run the demo on the terminal.

    Returns:
        the exit status: 0 if both plays are bit-identical and no record was lost with the frontend, else 1.
    Raises:
        ConfigError: there are no workers to play with.
    """
    if not config.has_workers:
        raise ConfigError("world_size", 0, "must be at least 1: the demo generates")
    console = Console()
    photos = load_photos(images)
    users = conversations(photos, num_users, num_turns)
    console.print(
        f"{len(photos)} photographs, {num_users} users, {num_requests(users)} requests; "
        f"frontend, engine and {config.world_size} workers"
    )
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        on, survival = _measure(config, users, progress, "all caches on")
        off, _ = _measure(all_caches_off(config), users, progress, "all caches off")
    console.print(make_table(on, off))
    different = differences(on.outcome, off.outcome)
    console.print(proof_line(on.outcome, different), style="bold red" if different else "bold green", highlight=False)
    console.print(survival_line(survival), style="bold green" if survival.is_whole else "bold red", highlight=False)
    return 1 if different or not survival.is_whole else 0


def _measure(
    config: ServiceConfig, users: Sequence[Sequence[Turn]], progress: Progress, title: str
) -> tuple[Measured, Survival]:
    """Play once, then kill the frontend."""
    task = progress.add_task(f"{title}: start", total=num_requests(users))
    with tempfile.TemporaryDirectory(prefix="mmc-demo-") as scratch:
        run_dir = Path(scratch) / "run"
        with ChildService(run_dir, config, Path(scratch) / "config.json"), Client(run_dir) as client:
            progress.update(task, description=title)
            before = client.stats()
            started = time.perf_counter()
            outcome = asyncio.run(play(run_dir, users, lambda: progress.advance(task)))
            seconds = time.perf_counter() - started
            after = client.stats()
            survival = kill_frontend(run_dir, outcome.embeddings)
    return Measured(outcome, before, after, seconds), survival
