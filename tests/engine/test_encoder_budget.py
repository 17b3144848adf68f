"""Budgets are raised so that the largest item fits, and refused where it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from mmcached.engine import (
    EncoderCacheManager,
    SharedEncoderCacheManager,
    compute_encoder_budget,
    make_encoder_cache_manager,
)
from mmcached.wire.errors import ConfigError
from tests.engine.builders import small_config


@pytest.mark.parametrize(
    ("changes", "budget"),
    [
        ({"max_num_encoder_input_tokens": 700, "encoder_cache_size": 800}, (700, 800)),
        ({"max_num_encoder_input_tokens": 500, "encoder_cache_size": 800}, (600, 800)),
        ({"max_num_encoder_input_tokens": 700, "encoder_cache_size": 0}, (700, 600)),
        ({"is_multimodal_model": False}, (0, 0)),
        ({"max_num_batched_tokens": 100}, (1024, 2048)),
        ({"disable_chunked_mm_input": True, "max_num_batched_tokens": 600}, (1024, 2048)),
        ({"disable_chunked_mm_input": True, "max_num_batched_tokens": 1, "is_multimodal_model": False}, (0, 0)),
    ],
)
def test_budget(changes: dict[str, Any], budget: tuple[int, int]) -> None:
    assert compute_encoder_budget(small_config(max_patches=600, **changes)) == budget


def test_an_item_that_may_not_be_split_must_fit_into_a_step() -> None:
    config = small_config(max_patches=600, disable_chunked_mm_input=True, max_num_batched_tokens=599)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens = 599.*at least 600"):
        compute_encoder_budget(config)


def test_scope_chooses_the_book() -> None:
    assert isinstance(make_encoder_cache_manager("shared", 7), SharedEncoderCacheManager)
    assert isinstance(make_encoder_cache_manager("request", 7), EncoderCacheManager)
    assert make_encoder_cache_manager("shared", 7).cache_size == 7
