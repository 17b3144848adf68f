"""Measures what vLLM's API and engine processes do for a picture before it is scheduled, with shared items and without.

From the decoded file to the engine's item, in one process: hash, look-up, the model's processor, the message over
ZeroMQ, and the engine's cache. An item that is found is not loaded: that is the encoder's part. A tiny Qwen2.5-VL with
the real processor. The file is decoded before, in both alike; a request with a name alone has no file, and its peer
decodes one. A hit in vLLM's own cache costs what vLLM does for any known picture: hash, tokens, prompt, message.

A new picture is put into the store after its message has gone: the time of that is not part of a row, and it has ended
before the next time is taken.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from PIL import Image
from vllm.multimodal.media import MediaWithBytes
from vllm.multimodal.media.image import ImageMediaIO
from vllm.multimodal.processing import BaseMultiModalProcessor

from mmcached.integrations.processed_inputs.vllm_named import note_named_items
from scripts.bench.harness import Row, row, wall_us
from scripts.bench.processing import photograph
from tests.hosts.vllm.engine_ends import Engine

OFF = "without mmcached"
KNOWN, NEW, NAMED = "picture that the host has processed", "new picture", "name alone of a picture that the host knows"
OWN = "in vLLM's own cache"
OFF_FROM_FILE = "without mmcached, from the file"
SIDES = (448, 1792)


def rows(checkpoint: Path, run_dir: Path, num_rounds: int) -> Iterator[Row]:
    with ExitStack() as stack:
        note_named_items(BaseMultiModalProcessor)
        off, first, second = (
            stack.enter_context(Engine(checkpoint, each, copies=False, has_named=True))
            for each in (None, run_dir, run_dir)
        )
        for side in SIDES:
            for engine in (off, first, second):
                _prepare_ms(engine, _picture(side, -1))
                engine.drain()
            yield from _of_one_size(off, first, second, side, num_rounds)


def _of_one_size(off: Engine, first: Engine, second: Engine, side: int, num_rounds: int) -> Iterator[Row]:
    without: list[float] = []
    own: list[float] = []
    new: list[float] = []
    known: list[float] = []
    from_file: list[float] = []
    by_name: list[float] = []
    for number in range(num_rounds):
        picture = _picture(side, number)
        for engine, times in ((off, without), (first, new))[:: 1 if number % 2 else -1]:
            times.append(_prepare_ms(engine, picture))
            engine.drain()
        own.append(_prepare_ms(off, picture))
        known.append(_prepare_ms(second, picture))
        name = f"{side} px, {number}"
        _prepare_ms(first, picture, name)
        first.drain()
        from_file.append(_prepare_ms(off, _picture(side, num_rounds + number).original_bytes))
        by_name.append(_prepare_ms(second, None, name))
    params, base = f"{side} px", statistics.median(without)
    yield row(KNOWN, params, statistics.median(known), "ms", peer=OFF, peer_value=base)
    yield row(KNOWN, params, statistics.median(known), "ms", peer=OWN, peer_value=statistics.median(own))
    base = statistics.median(from_file)
    yield row(NAMED, params, statistics.median(by_name), "ms", peer=OFF_FROM_FILE, peer_value=base)
    ratio = statistics.median(ours / theirs for ours, theirs in zip(new, without, strict=True))
    yield row(f"{NEW}, median of pairs", params, ratio, "×", peer=OFF, peer_value=1.0)


def _prepare_ms(engine: Engine, picture: MediaWithBytes[Image.Image] | bytes | None, name: str | None = None) -> float:
    def prepare() -> None:
        media = ImageMediaIO().load_bytes(picture) if isinstance(picture, bytes) else picture
        engine.send([media], [name])
        engine.receive()

    return wall_us(prepare) / 1000


def _picture(side: int, number: int) -> MediaWithBytes[Image.Image]:
    """Return a photograph as vLLM's media loader does; files of other numbers differ after the picture's end."""
    file = photograph(side * side / 1e6)
    image = Image.open(io.BytesIO(file)).convert("RGB").resize((side, side))
    return MediaWithBytes(image, file + b"%d" % number)
