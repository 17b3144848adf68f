"""Measures the adapter for Transformers beside a model, and an image processor, without it: on the CPU, in one process.

features   the forward pass of a prompt with a picture that the store has, and with one that it has not
images     an image processor that is given the file of a picture that it has seen

The tower has 12 layers of width 768 at 224 px, as ViT-B/16; the text model is small. Weights are random.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mmcached.client import Client
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Section, Unavailable, row, wall_us
from scripts.bench.sidecar_processes import frontend

NUM_ROUNDS, QUICK_ROUNDS = 9, 3
IMAGE_TOKEN = 500
NUM_ROWS = 196
OFF = "without the adapter"
TOWER, FILE = "tower of 86 M, 224 px", "JPEG of 1920 × 1080"
BOUNDS = [
    Bound("reach", "forward, picture seen", TOWER, OFF, 0.1),
    Bound("reach", "forward, picture new", TOWER, OFF, 1.03),
    Bound("reach", "image processor, file seen", FILE, OFF, 0.1),
]


def make_model() -> Any:
    """Return LLaVA with a tower of usual size and a tiny text model.

    Raises:
        Unavailable: Transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise Unavailable("transformers is not installed") from error
    vision = transformers.SiglipVisionConfig(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, image_size=224
    )
    text = transformers.LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2
    )
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE_TOKEN,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return transformers.LlavaForConditionalGeneration(config).eval()


def compare_forwards(client: Client, num_rounds: int) -> Iterator[Row]:
    model = make_model()
    import torch

    from mmcached.integrations.transformers import cached_image_features

    ids = torch.tensor([[1, *NUM_ROWS * [IMAGE_TOKEN], 5, 6, 7]])
    seeds = count()

    def picture() -> torch.Tensor:
        return torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(next(seeds)))

    def plain(pixels: torch.Tensor) -> float:
        return wall_us(lambda: model(input_ids=ids, pixel_values=pixels))

    def cached(pixels: torch.Tensor) -> float:
        with cached_image_features(model, client):
            return plain(pixels)

    seen = picture()
    with torch.no_grad():
        cached(seen)
        sides = {"seen": lambda: cached(seen), "new": lambda: cached(picture()), OFF: lambda: plain(picture())}
        figures = harness.compare(sides, num_rounds)
    for name in ("seen", "new"):
        yield row(
            f"forward, picture {name}", TOWER, figures[name] / 1000, "ms", peer=OFF, peer_value=figures[OFF] / 1000
        )


def compare_processors(client: Client, num_rounds: int) -> Iterator[Row]:
    try:
        from transformers.image_utils import load_image
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    except ImportError as error:
        raise Unavailable("transformers is not installed") from error
    from PIL import Image

    from mmcached.integrations.transformers import CachedImageProcessor

    file = BytesIO()
    x, y = np.meshgrid(np.linspace(0, 255, 1920), np.linspace(0, 255, 1080))
    grain = np.random.default_rng(0).normal(0, 8, (1080, 1920))
    pixels = np.stack([x, y, (x + y) / 2], axis=-1) + grain[..., None]
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG")
    processor = Qwen2VLImageProcessorPil()
    cached = CachedImageProcessor(processor, client)
    sides = {
        "ours": lambda: wall_us(partial(cached, file.getvalue(), return_tensors="pt")),
        OFF: lambda: wall_us(lambda: processor(load_image(Image.open(file)), return_tensors="pt")),
    }
    figures = harness.compare(sides, num_rounds)
    ours, off = figures["ours"] / 1000, figures[OFF] / 1000
    yield row("image processor, file seen", FILE, ours, "ms", peer=OFF, peer_value=off)


def open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    run_dir = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    undo.enter_context(frontend(run_dir))
    client = undo.enter_context(Client(run_dir, fail_open=False))
    return {"features": partial(compare_forwards, client), "images": partial(compare_processors, client)}


if __name__ == "__main__":
    harness.main(
        "image features and processed images of Transformers",
        ["features", "images"],
        open_sections,
        rounds=(NUM_ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
