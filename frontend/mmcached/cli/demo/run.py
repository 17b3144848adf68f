"""Runs the demo's stages: the cost of a photograph, then conversations with all caches on, after two kills, and off."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console

from mmcached.cli.config.fields import DEFAULT
from mmcached.cli.config.settings import LoadedConfig
from mmcached.cli.demo.clips import clip_turns, missing_extras
from mmcached.cli.demo.cost import make_cost_table, measure_again, measure_costs, warm_up
from mmcached.cli.demo.killing import kill_engines, kill_frontend
from mmcached.cli.demo.photos import Photo, load_photos
from mmcached.cli.demo.prompts import PromptWriter
from mmcached.cli.demo.report import (
    StageFigures,
    differences,
    encoded_line,
    hits_line,
    kills_line,
    proof_line,
    saved_line,
    store_line,
)
from mmcached.cli.demo.stages import Stages, shown_stages
from mmcached.cli.demo.workload import (
    REQUEST_S,
    Outcome,
    Turn,
    User,
    num_requests,
    play,
    user_with_clips,
    users_with_photos,
)
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, MmcachedError
from mmcached.wire.extras import how_to_install
from mmcached.wire.model_config import ModelConfig

SHOWN = {
    "data_parallel_size": 2,
    "world_size": 1,
    "routing_policy": "round_robin",
    "start_timeout_s": 600.0,
    "request_timeout_s": REQUEST_S,
}
"""The demo's own defaults: small processes, several engines with round-robin routing, long timeouts for a busy host."""
TOWER = {"encoder_width": 512, "encoder_layers": 16}
"""The demo's encoder, unless the user sets one: it computes for about 0.1 s per photograph on one core."""


@dataclass(frozen=True, slots=True)
class Workload:
    photos: list[Photo]
    users: list[User]
    writer: PromptWriter

    @property
    def num_requests(self) -> int:
        return num_requests(self.users)

    def num_items(self, play: Outcome) -> int:
        """Return the number of different photographs and slices; slices are known once they were encoded."""
        num_photos = len({photo.data for photo in self.photos})
        return num_photos + play.num_slices


def as_shown(loaded: LoadedConfig) -> ServiceConfig:
    """Return the user's settings, with the demo's own defaults for the rest."""
    own = {name: value for name, value in SHOWN.items() if loaded.origins[name] == DEFAULT}
    tower = {name: value for name, value in TOWER.items() if loaded.origins[f"model.{name}"] == DEFAULT}
    model: ModelConfig = msgspec.structs.replace(loaded.config.model, **tower)
    return msgspec.structs.replace(loaded.config, model=model, **own)


def all_caches_off(config: ServiceConfig) -> ServiceConfig:
    """Return the same service without any of the four caches, so that every request is computed in full."""
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
        The exit status: 0 if all plays are bit-identical and no record was lost with the frontend, else 1.

    Raises:
        ConfigError: The service has no workers, or the checkpoint no tokenizer.
    """
    if not config.has_workers:
        raise ConfigError("world_size", 0, "must be at least 1: the demo generates")
    console = Console()
    writer = PromptWriter.of(config)
    photos = load_photos(images)
    users = users_with_photos(photos, num_users, num_turns)
    turns = clip_turns(photos[0], writer.marks)
    if turns:
        users.append(user_with_clips(turns))
    for extra in missing_extras(writer.marks):
        console.print(f"no {extra} in this play: {how_to_install(extra)}", highlight=False, markup=False)
    workload = Workload(photos, users, writer)
    console.print(
        f"{len(photos)} photographs{_clips_in(turns)}; {len(users)} users, {workload.num_requests} requests; "
        f"{_count(config.num_engines, 'engine')}, {_count(config.world_size, 'worker')} each",
        highlight=False,
    )
    with shown_stages(console) as stages:
        return _run(config, workload, console, stages)


def _run(config: ServiceConfig, workload: Workload, console: Console, stages: Stages) -> int:
    photos, writer = workload.photos, workload.writer
    with (
        _service(config, stages, "start a service with all caches on") as run_dir,
        Client(run_dir, timeout_s=REQUEST_S) as client,
    ):
        warm_up(client, writer, config.num_engines)
        before = client.stats()
        with stages.stage("send each photograph to each engine, new and known", len(photos)) as advance:
            costs = measure_costs(client, writer, photos, config.num_engines, advance)
        on = _play(run_dir, workload, stages, "play the conversations, all caches on")
        first = StageFigures(before, client.stats())
        with stages.stage("kill the frontend, look into its store, wait for the next one"):
            survival = kill_frontend(run_dir, on.embeddings[: len(photos)])
        costs.append(measure_again(client, writer, photos, "after kill -9 of the frontend"))
        with stages.stage("kill all engines, wait for the next ones"):
            kill_engines(run_dir, config.num_engines)
        warm_up(client, writer, config.num_engines)  # on a busy host an engine's first look into the store may be late
        before = client.stats()
        costs.append(measure_again(client, writer, photos, "after kill -9 of all engines"))
        again = _play(run_dir, workload, stages, "play the conversations again")
        killed = StageFigures(before, client.stats())
    with _service(all_caches_off(config), stages, "start a service without caches") as run_dir:
        off = _play(run_dir, workload, stages, "play the conversations, all caches off")
    different = differences(on, off) + differences(again, off)
    console.print(make_cost_table(costs))
    lines = [
        (encoded_line(first, workload.num_items(on), config), True),
        (hits_line(first), True),
        (saved_line(first, killed.after), True),
        (kills_line(killed), not sum(killed.encoded_by_engine())),
        (store_line(survival), survival.is_whole),
        (proof_line(on, different), not different),
    ]
    for line, is_good in lines:
        console.print(line, style="green" if is_good else "bold red", highlight=False)
    return 1 if different or not survival.is_whole else 0


def _clips_in(turns: Sequence[Turn]) -> str:
    return (", a film" if any(turn.files.videos for turn in turns) else "") + (
        ", a sound" if any(turn.files.audios for turn in turns) else ""
    )


def _count(num: int, what: str) -> str:
    return f"{num} {what}" if num == 1 else f"{num} {what}s"


@contextmanager
def _service(config: ServiceConfig, stages: Stages, title: str) -> Iterator[Path]:
    """Run a service. Its log, in which the demo's own kills are errors, is shown only if the demo fails."""
    with tempfile.TemporaryDirectory(prefix="mmc-demo-") as scratch:
        run_dir, log_file = Path(scratch) / "run", Path(scratch) / "log"
        try:
            with ExitStack() as stack:
                with stages.stage(title):
                    stack.enter_context(ChildService(run_dir, config, Path(scratch) / "config.json", log_file=log_file))
                yield run_dir
        except MmcachedError:
            sys.stderr.write(log_file.read_text())
            raise


def _play(run_dir: Path, workload: Workload, stages: Stages, title: str) -> Outcome:
    with stages.stage(title, workload.num_requests) as advance:
        return asyncio.run(play(run_dir, workload.users, workload.writer, advance))
