"""Writes the small files of checkpoints, without weights: what frontend and engine read of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmcached.wire.config import ServiceConfig
from mmcached.wire.model_config import EncoderConfig, ModelConfig

CLIP = {"architectures": ["CLIPVisionModel"], "image_size": 56, "patch_size": 14}
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "max_position_embeddings": 8192,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
GEMMA = {
    **LLAMA,
    "architectures": ["Gemma3ForConditionalGeneration"],
    "vision_config": {"image_size": 56, "patch_size": 14},
    "mm_tokens_per_image": 100,
    "image_token_index": 258,
}
"""In which no chunk divides a picture."""
CROPPED = {"image_processor_type": "CLIPImageProcessor", "crop_size": {"height": 56, "width": 56}}


def write(folder: Path, model: Any = CLIP, processor: Any = CROPPED) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model))
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def config_of(folder: Path, **settings: Any) -> ServiceConfig:
    return ServiceConfig(encoder=EncoderConfig(kind="hf", path=str(folder)), **settings)


def model_config_of(folder: Path, **model: Any) -> ServiceConfig:
    """Return the configuration of a service that generates with the checkpoint of a folder."""
    return ServiceConfig(model=ModelConfig(kind="hf", path=str(folder), **model))
