"""`mmcached demo --encoder DIR`: a user's checkpoint encodes the photographs twice, for two clients.

The second client must find everything that the first one had processed and encoded; every bit of both answers is
compared.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmcached.cache.checkpoints.checkpoint import check_encoder
from mmcached.cli.demo.photos import Photo, load_photos
from mmcached.cli.serve.child_service import ChildService
from mmcached.cli.terminal_text import shown
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.parts import EncoderForm
from mmcached.wire.model_config import EncoderConfig
from mmcached.wire.stats import ServiceStats


@dataclass(frozen=True, slots=True)
class Play:
    """One client's requests, one photograph each.

    Attributes:
        processed: Photographs that were decoded and processed for it.
        encoded: Runs of the tower.
        seconds: Time of all requests, in sequence.
    """

    outputs: list[Any]
    processed: int
    encoded: int
    seconds: float


def run_tower_demo(config: ServiceConfig, folder: Path, *, images: Path | None) -> int:
    """Run the demo on the terminal.

    Returns:
        The exit status: 0 if both clients got the same bits, and the second one found everything.

    Raises:
        ConfigError: The checkpoint cannot be served.
    """
    encoder = msgspec.structs.replace(config.encoder, kind="hf", path=str(folder.resolve()))
    config = msgspec.structs.replace(config, encoder=encoder, world_size=max(1, config.world_size))
    check_encoder(config)
    console = Console()
    photos = load_photos(images)
    with tempfile.TemporaryDirectory(prefix="mmc-demo-") as scratch:
        run_dir = Path(scratch) / "run"
        with (
            console.status(Text(f"{shown(folder.name)}: start")),
            ChildService(run_dir, config, Path(scratch) / "config.json"),
        ):
            with Client(run_dir) as client:
                form = client.processor_info()
            plays = [_play(run_dir, photos) for _ in range(2)]
    console.print(shown(_headline(encoder, form, len(photos))), highlight=False, markup=False)
    console.print(_table(plays, len(photos)))
    is_same = _are_equal(plays[0].outputs, plays[1].outputs)
    is_whole = is_same and plays[1].processed == plays[1].encoded == 0
    console.print(_proof(plays, is_same), style="bold green" if is_whole else "bold red", highlight=False)
    return 0 if is_whole else 1


def _play(run_dir: Path, photos: Sequence[Photo]) -> Play:
    with Client(run_dir) as client:
        before = client.stats()
        started = time.perf_counter()
        outputs = [client.encode([photo.data])[0] for photo in photos]
        seconds = time.perf_counter() - started
        after = client.stats()
    processed = after.processor.items_processed - before.processor.items_processed
    return Play(outputs, processed, _num_encoded(after) - _num_encoded(before), seconds)


def _num_encoded(stats: ServiceStats) -> int:
    return sum(worker.items_encoded for engine in stats.engines for worker in engine.workers)


def _headline(encoder: EncoderConfig, form: EncoderForm, num_photos: int) -> str:
    outputs = ", ".join(f"{output.name} {output.dtype} {_shape(output.shape)}" for output in form.outputs)
    return f"{num_photos} photographs; {encoder.folder.name}: {form.kind}, {outputs}"


def _shape(shape: Sequence[int]) -> str:
    return " x ".join("n" if size < 0 else str(size) for size in shape)


def _table(plays: Sequence[Play], num_photos: int) -> Table:
    table = Table(title="work done", title_justify="left")
    for column in ("client", "processed", "tower runs", "found", "time"):
        table.add_column(column, justify="left" if column == "client" else "right", no_wrap=True)
    for name, play in zip(("first", "second"), plays, strict=True):
        found = num_photos - max(play.processed, min(play.encoded, num_photos))
        table.add_row(name, str(play.processed), str(play.encoded), str(found), f"{play.seconds:.2f} s")
    return table


def _proof(plays: Sequence[Play], is_same: bool) -> str:
    if not is_same:
        return "DIFFERENT: the second client got other bits than the first"
    ratio = plays[0].seconds / plays[1].seconds
    return f"proof: both clients got the same bits; the second one waited {ratio:.0f} times less"


def _are_equal(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(
        list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)
        for one, other in zip(map(_named, some), map(_named, others), strict=True)
    )


def _named(outputs: Any) -> dict[str, torch.Tensor]:
    return {"": outputs} if isinstance(outputs, torch.Tensor) else dict(outputs)
