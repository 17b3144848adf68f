"""Play the workload with all caches on, once more after two kills, and with all caches off, and compare every bit."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mmcached.cli.config.fields import DEFAULT
from mmcached.cli.config.settings import LoadedConfig
from mmcached.cli.demo.clips import clip_turns, missing_extras
from mmcached.cli.demo.killing import Survival, kill_engines, kill_frontend
from mmcached.cli.demo.photos import Photo, load_photos
from mmcached.cli.demo.report import (
    Measured,
    differences,
    make_table,
    make_where_table,
    proof_line,
    restart_line,
    survival_line,
)
from mmcached.cli.demo.workload import Turn, User, num_requests, play, user_with_clips, users_with_photos
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, MmcachedError
from mmcached.wire.extras import how_to_install

SHOWN = {"data_parallel_size": 2, "world_size": 1}
"""What the demo starts where nobody has said anything else: small processes, and more than one engine."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is played, again and again."""

    photos: list[Photo]
    users: list[User]

    @property
    def num_requests(self) -> int:
        return num_requests(self.users)


def as_shown(loaded: LoadedConfig) -> ServiceConfig:
    """Return what the user has set, with the demo's own defaults for the rest."""
    own = {name: value for name, value in SHOWN.items() if loaded.origins[name] == DEFAULT}
    return msgspec.structs.replace(loaded.config, **own)


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
        the exit status: 0 if all plays are bit-identical and no record was lost with the frontend, else 1.
    Raises:
        ConfigError: there are no workers to play with.
    """
    if not config.has_workers:
        raise ConfigError("world_size", 0, "must be at least 1: the demo generates")
    console = Console()
    photos = load_photos(images)
    users = users_with_photos(photos, num_users, num_turns)
    if turns := clip_turns(photos[0]):
        users.append(user_with_clips(turns))
    for extra in missing_extras():
        console.print(f"no {extra} in this play: {how_to_install(extra)}", highlight=False, markup=False)
    workload = Workload(photos, users)
    console.print(
        f"{len(photos)} photographs{_clips_in(turns)}; {len(users)} users, {workload.num_requests} requests; "
        f"{_count(config.num_engines, 'engine')}, {_count(config.world_size, 'worker')} each"
    )
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        on, survival, restart_s, again = _play_and_kill(config, workload, progress)
        off = _play_without_caches(config, workload, progress)
    console.print(make_table(on, off))
    console.print(make_where_table(on, again))
    different = differences(on.outcome, off.outcome) + differences(again.outcome, off.outcome)
    console.print(proof_line(on.outcome, different), style="bold red" if different else "bold green", highlight=False)
    console.print(survival_line(survival), style="bold green" if survival.is_whole else "bold red", highlight=False)
    console.print(restart_line(restart_s, again), style="bold green", highlight=False)
    return 1 if different or not survival.is_whole else 0


def _clips_in(turns: Sequence[Turn]) -> str:
    """Return what is in turns beside photographs, in words."""
    return (", a film" if any(turn.files.videos for turn in turns) else "") + (
        ", a sound" if any(turn.files.audios for turn in turns) else ""
    )


def _count(num: int, what: str) -> str:
    return f"{num} {what}" if num == 1 else f"{num} {what}s"


def _play_and_kill(
    config: ServiceConfig, workload: Workload, progress: Progress
) -> tuple[Measured, Survival, float, Measured]:
    """Play, kill the frontend, kill the engines, and play again when all have successors.

    Returns:
        the first play, what became of the records, seconds until the next engines were ready, the second play.
    """
    with _service(config) as run_dir:
        on = _measure(run_dir, workload, progress, "all caches on")
        survival = kill_frontend(run_dir, on.outcome.embeddings[: len(workload.photos)])
        seconds = kill_engines(run_dir, config.num_engines)
        return on, survival, seconds, _measure(run_dir, workload, progress, "after the kills")


def _play_without_caches(config: ServiceConfig, workload: Workload, progress: Progress) -> Measured:
    with _service(all_caches_off(config)) as run_dir:
        return _measure(run_dir, workload, progress, "all caches off")


@contextmanager
def _service(config: ServiceConfig) -> Iterator[Path]:
    """Run a service, whose log is shown if the demo fails: what it says of deaths is no news here."""
    with tempfile.TemporaryDirectory(prefix="mmc-demo-") as scratch:
        run_dir, log_file = Path(scratch) / "run", Path(scratch) / "log"
        try:
            with ChildService(run_dir, config, Path(scratch) / "config.json", log_file=log_file):
                yield run_dir
        except MmcachedError:
            sys.stderr.write(log_file.read_text())
            raise


def _measure(run_dir: Path, workload: Workload, progress: Progress, title: str) -> Measured:
    task = progress.add_task(title, total=workload.num_requests)
    with Client(run_dir) as client:
        before = client.stats()
        started = time.perf_counter()
        outcome = asyncio.run(play(run_dir, workload.users, lambda: progress.advance(task)))
        return Measured(outcome, before, client.stats(), time.perf_counter() - started)
