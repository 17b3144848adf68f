"""Processes pictures as vLLM's servers do, in a process of its own, and prints what came of it as JSON.

python -m tests.hosts.vllm.processing MODEL RUN_DIR SEED... [--counts-only]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from PIL import Image
from vllm.config import ModelConfig
from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import encode_mm_kwargs_item
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalKwargsItem
from vllm.multimodal.processing import ProcessorInputs, TimingContext

from mmcached.client import Client
from mmcached.integrations.processed_inputs.vllm_cache import MmcachedProcessorCache
from mmcached.integrations.processed_inputs.vllm_items import LazyItem
from mmcached.wire.closeable import Closeable

PROMPT = "<|vision_start|><|image_pad|><|vision_end|>"
DEADLINE_S = 60.0
PROCESSOR = "preprocess"
"""The method of Transformers' image processor in which the work is done."""


def picture(seed: int) -> Image.Image:
    """Return noise of 200 to 400 pixels a side."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(200, 400, 2)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


class Server(Closeable):
    """What of a render server touches pictures.

    Args:
        settings: Further settings of vLLM's model configuration.

    Attributes:
        num_runs: calls of Transformers' image processor that were given a picture.
        before_run: called in each.
    """

    def __init__(self, model: Path, run_dir: Path | None, *, counts_only: bool = False, **settings: Any) -> None:
        usual = {"dtype": "float32", "max_model_len": 2048, "limit_mm_per_prompt": {"image": 4}}
        self.config = ModelConfig(str(model), **usual, **settings)
        self.processor = MULTIMODAL_REGISTRY.create_processor(self.config)
        self.cache = None
        if run_dir is not None:
            self.cache = MmcachedProcessorCache(self.config, Client(run_dir), counts_only=counts_only)
        self.num_runs = 0
        self.before_run: Callable[[], object] = lambda: None
        images = self.processor.info.get_hf_processor().image_processor
        self._count_calls(type(images))

    def render(self, pictures: list[Image.Image], names: Sequence[str | None] | None = None) -> dict[str, Any]:
        """Return what `MultiModalProcessor.apply` gives for a prompt with these pictures."""
        info = self.processor.info
        prompt = info.get_tokenizer().encode(PROMPT * len(pictures), add_special_tokens=False)
        items = info.parse_mm_data({"image": pictures})
        found: dict[str, Any] = self.processor.apply(
            ProcessorInputs(prompt, items, None if names is None else {"image": names}, cache=self.cache),
            TimingContext(enabled=False),
        )
        return found

    def close(self) -> None:
        if self.cache is not None:
            self.cache.close()

    def _count_calls(self, kind: type) -> None:
        whole = getattr(kind, PROCESSOR)

        def counting(*args: Any, **kwargs: Any) -> Any:
            self.num_runs += 1
            self.before_run()
            return whole(*args, **kwargs)

        setattr(kind, PROCESSOR, counting)


def summary(server: Server, rendered: dict[str, Any], *, counts_only: bool = False) -> dict[str, Any]:
    """Return a rendered prompt as JSON values: a digest of the bits of each item, with how its fields are batched."""
    items = rendered["mm_kwargs"]["image"]
    return {
        "num_runs": server.num_runs,
        "tokens": rendered["prompt_token_ids"],
        "hashes": rendered["mm_hashes"]["image"],
        "placeholders": [
            [each.offset, each.length, None if each.is_embed is None else each.is_embed.tolist()]
            for each in rendered["mm_placeholders"]["image"]
        ],
        "were_loaded": [each.is_loaded for each in items if isinstance(each, LazyItem)],
        "grids": [each["image_grid_thw"].data.tolist() for each in items],
        "items": [] if counts_only else [digest(each) for each in items],
    }


def digest(item: Any) -> str:
    """Return a digest of what vLLM sends of an item to an engine: names, field configurations, dtypes, shapes, bits."""
    ordered = MultiModalKwargsItem({name: item[name] for name in sorted(item)})
    return blake3(encode_mm_kwargs_item(ordered).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--counts-only", action="store_true")
    given = parser.parse_args()
    with Server(given.model, given.run_dir, counts_only=given.counts_only) as server:
        rendered = server.render([picture(seed) for seed in given.seeds])
        if server.cache is not None:
            server.cache.drain(DEADLINE_S)
        json.dump(summary(server, rendered, counts_only=given.counts_only), sys.stdout)


if __name__ == "__main__":
    main()
