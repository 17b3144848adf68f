"""How much the encoder may compute in one step and keep overall, in embeddings, and which book keeps count.

Budgets count rows, as the field does; `encoder_bytes` says what they are in bytes. What is asked of a model, a
scheduler and their registry of inputs are the three protocols below. `ServiceConfig` is the first two, and
`ServiceModalities` makes the third of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import structlog

from mmcached.engine.encoder.encoder_cache_book import EncoderCacheBook, EncoderCacheScope
from mmcached.engine.encoder.encoder_cache_manager import EncoderCacheManager
from mmcached.engine.encoder.shared_encoder_cache_manager import SharedEncoderCacheManager
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError

log = structlog.get_logger("mmcached.engine")


class EncoderBudget(NamedTuple):
    """What the seed returns, named: embeddings that one step may compute, and embeddings that are kept."""

    compute_budget: int
    cache_size: int


class MultiModalModelConfig(Protocol):
    @property
    def is_multimodal_model(self) -> bool: ...


class EncoderSchedulerConfig(Protocol):
    """Sizes in embeddings, but for `max_num_batched_tokens`."""

    @property
    def max_num_batched_tokens(self) -> int: ...

    @property
    def max_num_encoder_input_tokens(self) -> int: ...

    @property
    def encoder_cache_size(self) -> int: ...

    @property
    def disable_chunked_mm_input(self) -> bool:
        """An item's placeholders may not be split over two steps."""


class MultiModalRegistry(Protocol):
    def get_max_tokens_per_item_by_nonzero_modality(self, model_config: Any) -> Mapping[str, int]:
        """Return, for each kind of item that may occur at all, the embeddings of the largest."""


class ServiceModalities:
    """The registry of a service: images, as large as its model takes them."""

    def __init__(self, config: ServiceConfig) -> None:
        self._config = config

    def get_max_tokens_per_item_by_nonzero_modality(self, model_config: Any) -> Mapping[str, int]:
        return {"image": self._config.model.max_patches_per_image}


def compute_encoder_budget(
    model_config: MultiModalModelConfig,
    scheduler_config: EncoderSchedulerConfig,
    mm_registry: MultiModalRegistry,
) -> EncoderBudget:
    """Return the two budgets, each raised to the largest item, so that any item fits.

    (0, 0) for a model without multimodal input, and, with a warning, for one of which all kinds of items are disabled.

    Raises:
        ConfigError: items may not be split over steps, and the largest does not fit into one.

    Source: vLLM 0.9's function of that name; it raises ValueError.
    """
    if not model_config.is_multimodal_model:
        return EncoderBudget(0, 0)
    by_modality = mm_registry.get_max_tokens_per_item_by_nonzero_modality(model_config)
    if not by_modality:
        log.warning("a multimodal model without any kind of item: there will be no encoder cache")
        return EncoderBudget(0, 0)
    largest = max(by_modality.values())
    if scheduler_config.disable_chunked_mm_input and largest > scheduler_config.max_num_batched_tokens:
        raise ConfigError(
            "max_num_batched_tokens",
            scheduler_config.max_num_batched_tokens,
            f"an item of {largest} embeddings may not be split (disable_chunked_mm_input): at least {largest}",
        )
    return EncoderBudget(
        max(scheduler_config.max_num_encoder_input_tokens, largest), max(scheduler_config.encoder_cache_size, largest)
    )


def service_encoder_budget(config: ServiceConfig) -> EncoderBudget:
    """Return the budgets of a service. Raises ConfigError as `compute_encoder_budget` does."""
    return compute_encoder_budget(config, config, ServiceModalities(config))


def make_encoder_cache_manager(scope: EncoderCacheScope, cache_size: int) -> EncoderCacheBook:
    """Return empty books for `cache_size` embeddings, with entries by content ("shared") or by request."""
    match scope:
        case "shared":
            return SharedEncoderCacheManager(cache_size)
        case "request":
            return EncoderCacheManager(cache_size)
