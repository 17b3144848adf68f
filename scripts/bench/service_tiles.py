"""Measures a service that encodes screenshots tile by tile, beside a service that encodes pictures whole: on the CPU.

encode   a screenshot of 5 tiles from the file to its embeddings: all of it new, or one place of a known one changed, of
         which a service that caches tiles encodes two tiles: the changed one, and the reduced whole

The model is LLaVA-NeXT with a tower of 6 layers of width 768 at 336 px and random weights. Services of real processes,
whose workers compute with one thread each: several would wait for each other on a machine with other work.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.model_config import EncoderConfig
from scripts.bench import harness
from scripts.bench.adapters_transformers import make_model
from scripts.bench.harness import Bound, Row, Section, row, wall_us

NUM_ROUNDS, QUICK_ROUNDS = 15, 5
SIDE = 672
WHOLE = "whole pictures"
TILED = "LLaVA-NeXT, 5 tiles of 336 px"
BOUNDS = [
    Bound("reach", "encode, one place changed", TILED, WHOLE, 0.6),
    Bound("reach", "encode, all new", TILED, WHOLE, 1.2),
]


def save_checkpoint(folder: Path) -> None:
    model = make_model(has_tiles=True)
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

    model.save_pretrained(folder)
    size = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    LlavaNextImageProcessorPil(**size, image_grid_pinpoints=[[SIDE, SIDE]]).save_pretrained(folder)


def compare_services(tiled: Client, whole: Client, num_rounds: int) -> Iterator[Row]:
    seeds = count()
    known = screen(next(seeds))

    def encode(client: Client, file: bytes) -> float:
        return wall_us(lambda: client.encode([file]))

    encode(tiled, file_of(known))
    sides = {
        "one place changed": lambda: encode(tiled, file_of(changed(known, next(seeds)))),
        "all new": lambda: encode(tiled, file_of(screen(next(seeds)))),
        WHOLE: lambda: encode(whole, file_of(screen(next(seeds)))),
    }
    figures = {side: us / 1000 for side, us in harness.compare(sides, num_rounds).items()}
    for side in ("one place changed", "all new"):
        yield row(f"encode, {side}", TILED, figures[side], "ms", peer=WHOLE, peer_value=figures[WHOLE])


def screen(seed: int) -> Any:
    """Return pixels in blocks of 12 by 12."""
    blocks = np.random.default_rng(seed).integers(0, 255, (SIDE // 12, SIDE // 12, 3), np.uint8)
    return blocks.repeat(12, axis=0).repeat(12, axis=1)


def changed(pixels: Any, seed: int) -> Any:
    """Return a screen with another patch in the middle of its last tile."""
    pixels = pixels.copy()
    middle = slice(SIDE * 11 // 16, SIDE * 13 // 16)
    pixels[middle, middle] = np.random.default_rng(seed).integers(0, 255, 3, np.uint8)
    return pixels


def file_of(pixels: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    scratch = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp")))
    save_checkpoint(scratch / "model")
    os.environ["OMP_NUM_THREADS"] = "1"
    clients: list[Client] = []
    for name, caches_tiles in (("tiled", True), ("whole", False)):
        encoder = EncoderConfig(kind="hf", path=str(scratch / "model"), caches_tiles=caches_tiles)
        config = ServiceConfig(
            world_size=1, device="cpu", encoder=encoder, mm_processor_workers=1, store_gb=0.5, log_level="error"
        )
        undo.enter_context(ChildService(scratch / name, config, scratch / f"{name}.json"))
        clients.append(undo.enter_context(Client(scratch / name, fail_open=False)))
    tiled, whole = clients
    return {"encode": partial(compare_services, tiled, whole)}


if __name__ == "__main__":
    harness.main("tiles of a service", ["encode"], open_sections, rounds=(NUM_ROUNDS, QUICK_ROUNDS), bounds=BOUNDS)
