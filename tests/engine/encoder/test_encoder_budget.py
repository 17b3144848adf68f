"""Budgets are raised so that the largest item fits, and refused where it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from mmcached.engine import (
    EncoderCacheManager,
    SharedEncoderCacheManager,
    compute_encoder_budget,
    make_encoder_cache_manager,
)
from mmcached.engine.encoder.encoder_budget import EncoderBudget, service_encoder_budget
from mmcached.wire.errors import ConfigError
from tests.engine.builders import small_config


@dataclass(frozen=True)
class Model:
    is_multimodal_model: bool = True


@dataclass(frozen=True)
class Limits:
    max_num_batched_tokens: int = 1024
    max_num_encoder_input_tokens: int = 1024
    encoder_cache_size: int = 2048
    disable_chunked_mm_input: bool = False


@dataclass(frozen=True)
class Registry:
    """What another engine's registry looks like; it must not be asked about a model without such input."""

    largest: Mapping[str, int] | None

    def get_max_tokens_per_item_by_nonzero_modality(self, model_config: Any) -> Mapping[str, int]:
        assert model_config.is_multimodal_model
        assert self.largest is not None
        return self.largest


CASES: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"max_num_encoder_input_tokens": 700, "encoder_cache_size": 800}, (700, 800)),
    ({"max_num_encoder_input_tokens": 500, "encoder_cache_size": 800}, (600, 800)),
    ({"max_num_encoder_input_tokens": 700, "encoder_cache_size": 0}, (700, 600)),
    ({"max_num_batched_tokens": 100}, (1024, 2048)),
    ({"disable_chunked_mm_input": True, "max_num_batched_tokens": 600}, (1024, 2048)),
]


@pytest.mark.parametrize(("changes", "budget"), CASES)
def test_budget(changes: dict[str, Any], budget: tuple[int, int]) -> None:
    """The largest of all kinds of items counts."""
    found = compute_encoder_budget(Model(), Limits(**changes), Registry({"audio": 40, "image": 600, "video": 7}))
    assert found == budget
    compute_budget, cache_size = found
    assert (found.compute_budget, found.cache_size) == (compute_budget, cache_size)


@pytest.mark.parametrize(("changes", "budget"), CASES)
def test_budget_of_a_service(changes: dict[str, Any], budget: tuple[int, int]) -> None:
    config = small_config(max_patches=600, **changes)
    assert service_encoder_budget(config) == budget
    assert compute_encoder_budget(config, config, Registry({"image": 600})) == budget


def test_a_model_without_such_input_needs_none() -> None:
    limits = Limits(disable_chunked_mm_input=True, max_num_batched_tokens=1)
    assert compute_encoder_budget(Model(is_multimodal_model=False), limits, Registry(None)) == EncoderBudget(0, 0)
    assert service_encoder_budget(small_config(is_multimodal_model=False)) == EncoderBudget(0, 0)


def test_a_model_of_which_all_kinds_are_disabled_needs_none_and_says_so() -> None:
    with capture_logs() as logs:
        assert compute_encoder_budget(Model(), Limits(), Registry({})) == EncoderBudget(0, 0)
    assert [entry["log_level"] for entry in logs] == ["warning"]


def test_an_item_that_may_not_be_split_must_fit_into_a_step() -> None:
    limits = Limits(disable_chunked_mm_input=True, max_num_batched_tokens=599)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens = 599.*at least 600"):
        compute_encoder_budget(Model(), limits, Registry({"image": 600}))
    config = small_config(max_patches=600, disable_chunked_mm_input=True, max_num_batched_tokens=599)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens = 599.*at least 600"):
        service_encoder_budget(config)


def test_scope_chooses_the_book() -> None:
    assert isinstance(make_encoder_cache_manager("shared", 7), SharedEncoderCacheManager)
    assert isinstance(make_encoder_cache_manager("request", 7), EncoderCacheManager)
    assert make_encoder_cache_manager("shared", 7).cache_size == 7
