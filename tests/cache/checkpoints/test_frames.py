"""How clips are cut for towers, and how slices are counted; `tests/hosts/transformers` compares with Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.cache.checkpoints.architectures import ARCHITECTURES
from mmcached.cache.checkpoints.checkpoint import Checkpoint, frame_sizes
from mmcached.cache.checkpoints.frames import FrameGrid
from mmcached.clips.frame_sizes import FrameSizes
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, InvalidRequest
from tests.cache.checkpoints.folders import config_of, write

QWEN = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "vision_config": {"spatial_merge_size": 2}}
SMALL = {"size": {"shortest_edge": 784, "longest_edge": 28 * 28 * 20}, "patch_size": 14, "merge_size": 2}


def frames_of(name: str) -> FrameGrid:
    counting = ARCHITECTURES[name]["video"]
    assert isinstance(counting, FrameGrid)
    return counting


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        (
            "Qwen2VLForConditionalGeneration",
            SMALL,
            FrameSizes(side=28, min_pixels=784, max_pixels=28 * 28 * 20, lifts=False),
        ),
        (
            "Qwen2VLForConditionalGeneration",
            {"min_pixels": 9, "max_pixels": 99},
            FrameSizes(side=28, min_pixels=9, max_pixels=99, lifts=False),
        ),
        (
            "Qwen3VLForConditionalGeneration",
            {},
            FrameSizes(side=32, min_pixels=64 * 32 * 32, max_pixels=384 * 32 * 32, lifts=True),
        ),
        (
            "Qwen3VLForConditionalGeneration",
            {"size": {"shortest_edge": 4096, "longest_edge": 25165824}},
            FrameSizes(side=32, min_pixels=2048, max_pixels=768 * 32 * 32, lifts=True),
        ),
        (
            "Qwen3VLForConditionalGeneration",
            {"size": {"shortest_edge": 4096, "longest_edge": 25165824}, "cap_pixels_per_frame": False},
            FrameSizes(side=32, min_pixels=2048, max_pixels=25165824 // 2, lifts=True),
        ),
    ],
)
def test_the_size_of_frames_follows_from_the_settings(name: str, settings: Any, expected: FrameSizes) -> None:
    assert frames_of(name).sizes(settings) == expected
    assert frames_of(name).largest({}, settings) == max(1, expected.max_pixels // expected.side**2)


def test_a_slice_has_as_many_embeddings_as_its_grid_has_squares() -> None:
    counting = frames_of("Qwen3VLForConditionalGeneration")
    assert counting.count({}, {"video_grid_thw": np.array([[1, 4, 6]])}) == 6
    with pytest.raises(InvalidRequest, match="video_grid_thw"):
        counting.count({}, {"video_grid_thw": np.ones((2, 3), np.int64)})


def test_settings_of_a_video_may_lie_where_transformers_looks_for_them(tmp_path: Path) -> None:
    folder = write(tmp_path, QWEN, SMALL)
    assert Checkpoint.open(folder).processors["video"] == SMALL
    assert frame_sizes(config_of(folder)) == frames_of(*QWEN["architectures"]).sizes(SMALL)
    (folder / "video_preprocessor_config.json").write_text('{"patch_size": 7}')
    assert Checkpoint.open(folder).processors == {"image": SMALL, "video": {"patch_size": 7}}
    (folder / "processor_config.json").write_text('{"video_processor": {"patch_size": 9}}')
    assert Checkpoint.open(folder).processors == {"image": SMALL, "video": {"patch_size": 9}}
    assert Checkpoint.open(folder).max_embeds_per_item == 28 * 28 * 768 // 18**2


def test_the_reference_model_and_towers_of_images_have_no_rule(tmp_path: Path) -> None:
    assert frame_sizes(ServiceConfig()) is None
    assert frame_sizes(config_of(write(tmp_path))) is None


@pytest.mark.parametrize(
    "settings", [{"do_normalize": False}, {"do_resize": False}, {"temporal_patch_size": 1}], ids=str
)
def test_settings_that_are_not_followed_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    write(tmp_path, QWEN, SMALL | settings)
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Checkpoint.open(tmp_path)
