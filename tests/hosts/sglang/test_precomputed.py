"""What SGLang's own processor makes of embeddings that come with a request: which form passes the tower by.

`docs/hosts/gateway.md` says which; with a newer SGLang these tests tell what has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.managers import mm_schedule
from sglang.srt.multimodal.processors.qwen_vl import QwenVLImageProcessor
from sglang.srt.runtime_context import get_server_args
from transformers import AutoProcessor

from examples.gateway import sglang_images

ROWS, WIDTH = 16, 128
GRID = [1, 8, 8]
IMAGE = "<|vision_start|>{}<|vision_end|>"
EXPANDED = IMAGE.format("<|image_pad|>" * ROWS)
REQUEST = SimpleNamespace(rid="x", video_data=None, audio_data=None, mm_content_hashes=None)

Process = Callable[[list[dict[str, Any]], str], Any]


@pytest.fixture
def process(checkpoint: Path, published: Callable[..., None]) -> Iterator[Process]:
    """Return what makes items of a request's images and prompt."""
    published()
    arguments = get_server_args()
    config = ModelConfig.from_server_args(arguments).hf_config
    processor = QwenVLImageProcessor(config, arguments, AutoProcessor.from_pretrained(checkpoint), None)

    def run(images: list[dict[str, Any]], prompt: str) -> Any:
        return asyncio.run(processor.process_mm_data_async(images, prompt, REQUEST, max_req_input_len=4096))

    yield run
    processor.shutdown()
    processor.io_executor.shutdown()
    processor.cpu_executor.shutdown()


def embed(output: Any) -> tuple[torch.Tensor, int]:
    """Return the embeddings that SGLang takes for a request, and how many items the tower was given."""
    encoded = 0

    def tower(items: list[Any]) -> torch.Tensor:
        nonlocal encoded
        encoded += len(items)
        return torch.zeros(sum(end - start + 1 for item in items for start, end in item.offsets), WIDTH)

    items, ids = output.mm_items, torch.tensor(list(output.input_ids))
    spans = [span for item in items for span in item.offsets]
    for item in items:
        item.set_pad_value()
        for start, end in item.offsets:
            ids[start : end + 1] = item.pad_value
    mm_schedule.init_mm_embedding_cache(1 << 20)
    pads = torch.tensor(sorted({item.pad_value for item in items}))
    found, _, _ = mm_schedule.get_embedding_and_mask(tower, items, pads, ids, [0, len(items)], [0], [len(ids)], [spans])
    assert isinstance(found, torch.Tensor)
    return found, encoded


@pytest.mark.parametrize("num_images", [1, 2])
def test_processor_output_with_embeddings_passes_the_tower_by(process: Process, num_images: int) -> None:
    records: list[dict[str, Any]] = [{"embeds": torch.randn(ROWS, WIDTH), "grid": GRID} for _ in range(num_images)]
    output = process(sglang_images(records), "what " + " and ".join([EXPANDED] * num_images))
    found, num_encoded = embed(output)
    assert num_encoded == 0
    assert torch.equal(found, torch.cat([record["embeds"] for record in records]))


def test_the_format_precomputed_embedding_does_not(process: Process) -> None:
    image = {"format": "precomputed_embedding", "feature": torch.randn(ROWS, WIDTH), "image_grid_thw": [GRID]}
    _, num_encoded = embed(process([image], EXPANDED))
    assert num_encoded == 1


def test_a_request_brings_one_set_of_embeddings(process: Process) -> None:
    image = {"format": "processor_output", "precomputed_embeddings": torch.zeros(ROWS, WIDTH), "image_grid_thw": [GRID]}
    with pytest.raises(ValueError, match="exactly one item"):
        process([image, image], EXPANDED * 2)


def test_a_prompt_has_a_place_for_each_row(process: Process) -> None:
    image = {
        "format": "processor_output",
        "precomputed_embeddings": torch.zeros(ROWS, WIDTH),
        "image_grid_thw": torch.tensor([GRID]),
    }
    with pytest.raises(RuntimeError, match="size"):
        process([image], IMAGE.format("<|image_pad|>"))
