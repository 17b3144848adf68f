"""A row of a picture has all DeepStack levels of its model; a row of a sound has none."""

from __future__ import annotations

from typing import Any

import pytest

from mmcached.integrations.embedding_width import embedding_width

QWEN3_VL = {"text_config": {"hidden_size": 64}, "vision_config": {"deepstack_visual_indexes": [5, 11, 17]}}


@pytest.mark.parametrize(
    ("config", "modality", "width"),
    [
        ({"vision_config": {"depth": 2}}, "image", 64),
        (QWEN3_VL, "image", 256),
        (QWEN3_VL, "video", 256),
        ({"thinker_config": {**QWEN3_VL, "audio_config": {}}}, "image", 256),
        ({"thinker_config": {**QWEN3_VL, "audio_config": {}}}, "audio", 64),
        ({}, "image", 64),
    ],
)
def test_width(config: dict[str, Any], modality: str, width: int) -> None:
    assert embedding_width(64, config, modality) == width
