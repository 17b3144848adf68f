"""Writes small checkpoints that a service can encode with, and says what Transformers alone makes of a picture."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from tests.hosts.transformers.models import PINPOINTS, make

SIDE = {"height": 56, "width": 56}
TILES = {"size": {"longest_edge": 112}, "max_image_size": {"longest_edge": 56}}
CUT = {"size": {"shortest_edge": 64}, "crop_size": SIDE}
PROCESSORS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "clip": ("clip", "CLIP", CUT),
    "clip_tower": ("clip", "CLIP", CUT),
    "siglip": ("siglip", "Siglip", {"size": SIDE}),
    "siglip_tower": ("siglip", "Siglip", {"size": SIDE}),
    "siglip2": ("siglip2", "Siglip2", {"patch_size": 14, "max_num_patches": 16}),
    "siglip2_tower": ("siglip2", "Siglip2", {"patch_size": 14, "max_num_patches": 16}),
    "dinov2": ("bit", "Bit", CUT),
    "llava": ("clip", "CLIP", CUT),
    "qwen2_vl": ("qwen2_vl", "Qwen2VL", {"size": {"shortest_edge": 784, "longest_edge": 28 * 28 * 20}}),
    "qwen2_5_vl": ("qwen2_vl", "Qwen2VL", {"size": {"shortest_edge": 784, "longest_edge": 28 * 28 * 20}}),
    "qwen2_5_omni": ("qwen2_vl", "Qwen2VL", {"size": {"shortest_edge": 784, "longest_edge": 28 * 28 * 20}}),
    "qwen3_vl": ("qwen2_vl", "Qwen2VL", {"patch_size": 16, "size": {"shortest_edge": 1024, "longest_edge": 20480}}),
    "gemma3": ("gemma3", "Gemma3", {"size": SIDE}),
    "smolvlm": ("smolvlm", "SmolVLM", TILES),
    "idefics3": ("idefics3", "Idefics3", TILES),
    "internvl": ("got_ocr2", "GotOcr2", {"size": SIDE, "crop_to_patches": True, "max_patches": 4}),
    "llava_next": (
        "llava_next",
        "LlavaNext",
        {"size": {"shortest_edge": 56}, "crop_size": SIDE, "image_grid_pinpoints": PINPOINTS},
    ),
    "gemma3_wide": ("gemma3", "Gemma3", {"size": {"height": 112, "width": 112}}),
}
"""By family: module, class and settings of its image processor."""
WHOLE: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "videomae": ("videomae", "VideoMAE", {"size": {"shortest_edge": 36}, "crop_size": {"height": 32, "width": 32}}),
}
"""Of families that take clips whole."""
EXTRACTORS: Mapping[str, Mapping[str, Any]] = {
    "whisper": {"feature_size": 80, "chunk_length": 1},
    "qwen2_5_omni": {"feature_size": 80, "chunk_length": 300, "return_attention_mask": True},
    "qwen3_omni": {"feature_size": 80, "chunk_length": 300, "return_attention_mask": True},
}
"""By family that takes sounds: settings of its feature extractor."""
TOWERS = ("clip_tower", "siglip_tower", "siglip2_tower", "dinov2")
OUTPUTS: Mapping[str, list[str]] = {
    **{name: ["last_hidden_state", "pooler_output"] for name in TOWERS},
    "qwen3_vl": ["embeddings", "deepstack_0", "deepstack_1"],
}
"""Of families whose outputs are not the embeddings alone."""


def save(family: str, folder: Path, dtype: torch.dtype = torch.float32, *, text_scale: float = 1.0) -> Path:
    """Write a checkpoint with random weights, those of the language model `text_scale` as large; return its folder."""
    model, _ = make(family, dtype)
    for name, parameter in model.named_parameters():
        if "language_model" in name and parameter.ndim > 1:
            parameter.data.mul_(text_scale)
    model.save_pretrained(folder)
    settings: dict[str, Any] = {}
    for processor in processors_of(family):
        settings |= json.loads(processor.to_json_string())
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def processors_of(family: str) -> Iterator[Any]:
    if family in EXTRACTORS:
        yield transformers.WhisperFeatureExtractor(**EXTRACTORS[family])
    if family in {**PROCESSORS, **WHOLE}:
        module, name, settings = {**PROCESSORS, **WHOLE}[family]
        path = f"transformers.models.{module}.image_processing_pil_{module}"
        yield getattr(importlib.import_module(path), f"{name}ImageProcessorPil")(**settings)


def alone(folder: Path, file: bytes) -> list[torch.Tensor]:
    """Return what Transformers gives for one picture, in the order of the outputs."""
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    inputs = processor(images=Image.open(BytesIO(file)).convert("RGB"), return_tensors="pt")
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()
    inputs = {name: value for name, value in inputs.items() if name not in ("num_crops", "num_patches")}
    with torch.no_grad():
        if not hasattr(model, "get_image_features"):
            output = model(**inputs)
            return [output.last_hidden_state[0], output.pooler_output[0]]
        output = model.get_image_features(**inputs, return_dict=True)
    pooled = output.pooler_output
    rows = pooled.flatten(0, 1) if config.model_type == "internvl" else pooled[0]
    return [rows, *(level[0] for level in getattr(output, "deepstack_features", []))]


def photograph(width: int, height: int, kind: str, seed: int) -> bytes:
    """Return the file of a smooth picture with some noise, as a camera's."""
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 255, (5, 7, 3), np.uint8))
    pixels = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = np.clip(pixels + random.integers(-6, 7, pixels.shape), 0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(noisy).save(file, kind)
    return file.getvalue()


PICTURES = [
    partial(photograph, *size)(kind, seed)
    for seed, (size, kind) in enumerate([((160, 90), "JPEG"), ((70, 130), "PNG"), ((300, 300), "WEBP")])
]
