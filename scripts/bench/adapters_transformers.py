"""Measures the adapter for Transformers beside a model, and an image processor, without it: on the CPU, in one process.

features   the forward pass of a prompt with a picture that the store has, and with one that it has not
tiles      the forward pass of a prompt with a screenshot of 5 tiles, of which one or all have changed
images     image processors that are given the file of a picture that they have seen, and of a new one

Features are shared from before the first measurement on; the peer is a copy of the model. Times are the processor time
of all threads, because a busy neighbour multiplies the wall time of encoders. The tower has 12 layers of width 768 at
224 px, as ViT-B/16, for tiles 6 layers at 336 px; the text model is small. Weights are random.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mmcached.client import Client
from scripts.bench import harness
from scripts.bench.harness import Bound, Call, Row, Section, Unavailable, row
from scripts.bench.sidecar_processes import frontend

NUM_ROUNDS, QUICK_ROUNDS = 9, 3
IMAGE_TOKEN = 500
NUM_ROWS = 196
OFF = "without the adapter"
TOWER, FILE = "tower of 86 M, 224 px", "JPEG of 1920 × 1080"
SCREENSHOT = "PNG of 1920 × 1080, LLaVA-NeXT"
TOWER_SIZE = {"image_size": 224, "num_hidden_layers": 12}
NUM_TILES, NUM_TILED_ROWS = 5, 2928
TILED = "LLaVA-NeXT, 5 tiles of 336 px"
BOUNDS = [
    Bound("reach", "forward, picture seen", TOWER, OFF, 0.1),
    Bound("reach", "forward, picture new", TOWER, OFF, 1.03),
    Bound("reach", "forward, 1 tile of 5 changed", TILED, OFF, 0.4),
    Bound("reach", "forward, 5 tiles of 5 changed", TILED, OFF, 1.03),
    Bound("try", "image processor, file seen", FILE, OFF, 0.1),
    Bound("reach", "image processor, file new", FILE, OFF, 1.1),
    Bound("reach", "tiled image processor, file seen", SCREENSHOT, OFF, 0.3),
    Bound("reach", "tiled image processor, file new", SCREENSHOT, OFF, 1.1),
]


def make_model(*, has_tiles: bool = False) -> Any:
    """Return LLaVA, or LLaVA-NeXT, with a tower of usual width and a tiny text model.

    Raises:
        Unavailable: Transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise Unavailable("transformers is not installed") from error
    size = {"image_size": 336, "patch_size": 14, "num_hidden_layers": 6} if has_tiles else TOWER_SIZE
    vision = transformers.SiglipVisionConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12, **size)
    text = transformers.LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
    )
    settings: dict[str, Any] = {
        "vision_config": vision,
        "text_config": text,
        "image_token_index": IMAGE_TOKEN,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }
    if has_tiles:
        config = transformers.LlavaNextConfig(**settings, image_grid_pinpoints=[[672, 672]])
        return transformers.LlavaNextForConditionalGeneration(config).eval()
    return transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(**settings)).eval()


def compare_forwards(client: Client, num_rounds: int) -> Iterator[Row]:
    model = make_model()
    import torch

    from mmcached.integrations.transformers import cached_image_features

    ids = torch.tensor([[1, *NUM_ROWS * [IMAGE_TOKEN], 5, 6, 7]])
    seeds = count()

    def picture() -> torch.Tensor:
        return torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(next(seeds)))

    def time_of(which: Any, pixels: torch.Tensor) -> float:
        return cpu_us(lambda: which(input_ids=ids, pixel_values=pixels))

    plain, seen = copy.deepcopy(model), picture()
    with torch.no_grad(), cached_image_features(model, client):
        time_of(model, seen)
        sides = {
            "seen": lambda: time_of(model, seen),
            "new": lambda: time_of(model, picture()),
            OFF: lambda: time_of(plain, picture()),
        }
        figures = harness.compare(sides, num_rounds)
    for name in ("seen", "new"):
        yield row(
            f"forward, picture {name}", TOWER, figures[name] / 1000, "ms", peer=OFF, peer_value=figures[OFF] / 1000
        )


def compare_tiles(client: Client, num_rounds: int) -> Iterator[Row]:
    model = make_model(has_tiles=True)
    import torch

    from mmcached.integrations.transformers import cached_image_features

    ids = torch.tensor([[1, *NUM_TILED_ROWS * [IMAGE_TOKEN], 5, 6, 7]])
    sizes = torch.tensor([[672, 672]])
    seeds = count()

    def screenshot(num_changed: int = NUM_TILES) -> torch.Tensor:
        pixels = torch.zeros(1, NUM_TILES, 3, 336, 336) + torch.arange(1, NUM_TILES + 1).view(1, -1, 1, 1, 1)
        of_changed = 1, num_changed, 3, 336, 336
        pixels[:, :num_changed] = torch.randn(of_changed, generator=torch.Generator().manual_seed(next(seeds)))
        return pixels

    def time_of(which: Any, pixels: torch.Tensor) -> float:
        return cpu_us(lambda: which(input_ids=ids, pixel_values=pixels, image_sizes=sizes))

    plain = copy.deepcopy(model)
    with torch.no_grad(), cached_image_features(model, client):
        time_of(model, screenshot(0))
        sides = {
            "1": lambda: time_of(model, screenshot(1)),
            str(NUM_TILES): lambda: time_of(model, screenshot()),
            OFF: lambda: time_of(plain, screenshot()),
        }
        figures = harness.compare(sides, num_rounds)
    for num_changed in ("1", str(NUM_TILES)):
        name, ours = (
            f"forward, {num_changed} tile{'s' * (num_changed != '1')} of {NUM_TILES} changed",
            figures[num_changed],
        )
        yield row(name, TILED, ours / 1000, "ms", peer=OFF, peer_value=figures[OFF] / 1000)


def cpu_us(run: Call) -> float:
    """Return the processor time of all threads for a call."""
    started = time.process_time_ns()
    run()
    return (time.process_time_ns() - started) / 1000


def compare_processors(client: Client, num_rounds: int) -> Iterator[Row]:
    try:
        from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    except ImportError as error:
        raise Unavailable("transformers is not installed") from error
    for name, params, processor, kind in (
        ("image processor", FILE, Qwen2VLImageProcessorPil(), "JPEG"),
        ("tiled image processor", SCREENSHOT, LlavaNextImageProcessorPil(), "PNG"),
    ):
        figures = times_of_processor(client, num_rounds, processor, kind)
        for side in ("seen", "new"):
            yield row(f"{name}, file {side}", params, figures[side], "ms", peer=OFF, peer_value=figures[OFF])


def times_of_processor(client: Client, num_rounds: int, processor: Any, kind: str) -> dict[str, float]:
    """Return the milliseconds for a file that was seen, for a new one, and without the adapter."""
    from PIL import Image
    from transformers.image_utils import load_image

    from mmcached.integrations.transformers import CachedImageProcessor

    seeds = count()
    seen = picture_file(kind, next(seeds))
    cached = CachedImageProcessor(processor, client)
    cached(seen, return_tensors="pt")  # the form of records, too

    def plain(file: bytes) -> object:
        return processor(load_image(Image.open(BytesIO(file))), return_tensors="pt")

    def of_new(process: Callable[[bytes], object]) -> float:
        file = picture_file(kind, next(seeds))
        return cpu_us(lambda: process(file))

    with_store = partial(cached, return_tensors="pt")
    sides = {
        "seen": lambda: cpu_us(lambda: with_store(seen)),
        "new": lambda: of_new(with_store),
        OFF: lambda: of_new(plain),
    }
    return {side: us / 1000 for side, us in harness.compare(sides, 4 * num_rounds).items()}


def picture_file(kind: str, seed: int) -> bytes:
    """Return a file of 1920 × 1080: a photograph as JPEG, or a screenshot as PNG."""
    from PIL import Image

    random = np.random.default_rng(seed)
    if kind == "PNG":
        blocks = random.integers(0, 255, (54, 96, 3)).repeat(20, axis=0).repeat(20, axis=1)
        letters = random.integers(0, 2, (1080, 1920, 1)).repeat(3, axis=2)
        pixels = np.where(blocks[..., :1] < 64, 255 * letters, blocks)
    else:
        x, y = np.meshgrid(np.linspace(0, 255, 1920), np.linspace(0, 255, 1080))
        pixels = np.stack([x, y, (x + y) / 2], axis=-1) + random.normal(0, 8, (1080, 1920))[..., None]
    file = BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, kind)
    return file.getvalue()


def open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    run_dir = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    undo.enter_context(frontend(run_dir, store_gb=2.0))
    client = undo.enter_context(Client(run_dir, fail_open=False))
    return {
        "features": partial(compare_forwards, client),
        "tiles": partial(compare_tiles, client),
        "images": partial(compare_processors, client),
    }


if __name__ == "__main__":
    harness.main(
        "image features and processed images of Transformers",
        ["features", "tiles", "images"],
        open_sections,
        rounds=(NUM_ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
