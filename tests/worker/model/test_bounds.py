"""The bound of each kind of sum, compared with sums that are really formed, and its check in the constructor."""

from __future__ import annotations

import msgspec
import pytest
import torch

from mmcached.wire.errors import ConfigError
from mmcached.wire.model_config import ModelConfig
from mmcached.worker.model.arithmetic import MAX_SUM, PRIME
from mmcached.worker.model.bounds import check_bounds, largest_sums
from mmcached.worker.model.model import ReferenceModel

P = PRIME - 1


def test_every_configuration_the_service_accepts_is_within_the_bound() -> None:
    largest = ModelConfig(
        hidden_size=4096,
        num_layers=1,
        num_heads=4096,
        encoder_width=4096,
        patch_size=4096,
        max_patches_per_image=4096,
        audio_frame=4096,
        audio_window=4096,
    )
    sums = largest_sums(largest, 1 << 24)
    assert max(sums.values()) <= MAX_SUM < 2**53
    check_bounds(largest, 1 << 24)


def test_bounds_are_not_less_than_the_sums() -> None:
    model = ModelConfig(
        hidden_size=8, num_heads=2, encoder_width=6, patch_size=2, max_patches_per_image=5, audio_frame=3
    )
    sums = largest_sums(model, 20)
    assert sums["pixels"] >= 24 * 255 * P + 4 * P
    assert sums["samples"] >= 3 * 65535 * P + 49 * P
    assert sums["projection"] >= 8 * P * P + P
    assert sums["score"] >= 4 * P * P + 2 * 19
    assert sums["attention"] >= 20 * 13 * P
    assert sums["position"] >= P + 19 * P + P * P + 0
    assert sums["key"] >= P * 261 + 260


def test_constructor_refuses_sizes_that_could_round() -> None:
    model = msgspec.structs.replace(ModelConfig(), patch_size=1 << 22)
    with pytest.raises(ConfigError, match="pixels") as caught:
        ReferenceModel(model, max_model_len=64, device=torch.device("cpu"))
    assert caught.value.details["value"] == largest_sums(model, 64)["pixels"]
