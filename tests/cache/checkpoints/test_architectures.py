"""Embeddings are counted as the towers give them; `tests/hosts/transformers` compares with the towers themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mmcached.cache.checkpoints.architectures import ARCHITECTURES
from mmcached.wire.errors import InvalidRequest

SQUARE = {"pixel_values": np.zeros((1, 3, 56, 56), np.float32)}
GRID = {"pixel_values": np.zeros((24, 1), np.float32), "image_grid_thw": np.array([[1, 4, 6]])}
PADDED = {"pixel_values": np.zeros((1, 16, 588), np.float32)}
SIDE_14 = {"vision_config": {"patch_size": 14}}


def packed(num_tiles: int, height: int, width: int) -> dict[str, Any]:
    pixels = np.zeros((1, num_tiles, 3, 336, 336), np.float32)
    return {"pixel_values": pixels, "image_sizes": np.array([[height, width]])}


@pytest.mark.parametrize(
    ("name", "model", "tensors", "count"),
    [
        ("CLIPModel", {}, SQUARE, 1),
        ("SiglipVisionModel", {"patch_size": 14}, SQUARE, 16),
        ("Dinov2Model", {}, SQUARE, 17),
        ("CLIPVisionModel", {"patch_size": 28}, SQUARE, 5),
        ("Siglip2VisionModel", {}, PADDED, 16),
        ("LlavaForConditionalGeneration", SIDE_14, SQUARE, 16),
        ("LlavaForConditionalGeneration", SIDE_14 | {"vision_feature_select_strategy": "full"}, SQUARE, 17),
        ("Qwen2_5_VLForConditionalGeneration", {"vision_config": {"spatial_merge_size": 2}}, GRID, 6),
        ("Qwen3VLForConditionalGeneration", {}, GRID, 6),
        ("Gemma3ForConditionalGeneration", {"mm_tokens_per_image": 4}, SQUARE, 4),
        ("LlavaNextForConditionalGeneration", {}, packed(5, 672, 672), 576 + 48 * 49),
        ("LlavaNextForConditionalGeneration", {}, packed(5, 600, 700), 576 + 42 * 49),
        ("LlavaNextForConditionalGeneration", {}, packed(3, 100, 400), 576 + 12 * 49),
        ("InternVLForConditionalGeneration", {}, {"pixel_values": np.zeros((3, 3, 448, 448), np.float32)}, 768),
        ("InternVLForConditionalGeneration", {"vision_config": {"image_size": [56, 28]}}, SQUARE, 2),
    ],
)
def test_count(name: str, model: dict[str, Any], tensors: dict[str, Any], count: int) -> None:
    assert ARCHITECTURES[name]["image"].count(model, tensors) == count


@pytest.mark.parametrize(
    ("name", "model", "processor", "largest"),
    [
        ("CLIPVisionModel", {"patch_size": 14}, {"crop_size": 56, "size": 64}, 17),
        ("SiglipVisionModel", {"patch_size": 14}, {"size": {"height": 28, "width": 56}}, 8),
        ("Dinov2Model", {}, {"size": {"shortest_edge": 64}, "crop_size": {"height": 28, "width": 28}}, 5),
        ("SiglipVisionModel", {"patch_size": 14, "image_size": 28}, {}, 4),
        ("Qwen2VLForConditionalGeneration", {}, {"size": {"longest_edge": 28 * 28 * 20}}, 20),
        ("Qwen2_5_VLForConditionalGeneration", {}, {"max_pixels": 28 * 28 * 30, "size": {"longest_edge": 1}}, 30),
        ("Qwen3VLForConditionalGeneration", {}, {"size": {"longest_edge": 32 * 32 * 7 + 5}}, 7),
        ("Siglip2VisionModel", {}, {"max_num_patches": 64}, 64),
        ("Gemma3ForConditionalGeneration", {}, {}, 256),
        ("LlavaNextForConditionalGeneration", {}, {}, 576 + 48 * 49),
        ("InternVLForConditionalGeneration", {}, {"max_patches": 4}, 5 * 256),
        ("InternVLForConditionalGeneration", {}, {"max_patches": 1, "crop_to_patches": False}, 256),
    ],
)
def test_largest(name: str, model: dict[str, Any], processor: dict[str, Any], largest: int) -> None:
    assert ARCHITECTURES[name]["image"].largest(model, processor) == largest


def test_what_is_no_picture_alone_is_refused() -> None:
    several = {"pixel_values": np.zeros((3, 3, 56, 56), np.float32)}
    for name in ("CLIPModel", "CLIPVisionModel", "Gemma3ForConditionalGeneration"):
        with pytest.raises(InvalidRequest, match="3 images"):
            ARCHITECTURES[name]["image"].count({}, several)
    with pytest.raises(InvalidRequest, match="image_grid_pinpoints"):
        ARCHITECTURES["LlavaNextForConditionalGeneration"]["image"].count({}, packed(4, 672, 672))
    with pytest.raises(InvalidRequest, match="one image"):
        ARCHITECTURES["Qwen3VLForConditionalGeneration"]["image"].count(
            {}, {"image_grid_thw": np.ones((2, 3), np.int64)}
        )
