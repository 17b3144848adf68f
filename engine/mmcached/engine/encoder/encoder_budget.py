"""Computes the encoder's budgets per step and for the cache, in embeddings; creates the cache manager."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import structlog

from mmcached.cache.checkpoints.checkpoint import max_embeds_per_item
from mmcached.engine.encoder.encoder_cache_manager import EncoderCacheManager
from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from mmcached.engine.encoder.shared_encoder_cache_manager import SharedEncoderCacheManager
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError

log = structlog.get_logger("mmcached.engine")

EncoderCacheScope = Literal["shared", "request"]


class EncoderBudget(NamedTuple):
    compute_budget: int
    cache_size: int


def compute_encoder_budget(model_config: Any, scheduler_config: Any, mm_registry: Any) -> EncoderBudget:
    """Return the two budgets, each raised to the size of the largest item, so that any item fits.

    (0, 0) for a model without multimodal input, and, with a warning, if all its modalities are disabled.

    Args:
        scheduler_config: `max_num_encoder_input_tokens` and `encoder_cache_size` in embeddings,
            `max_num_batched_tokens`, and `disable_chunked_mm_input`: placeholders of an item stay in one step.
        mm_registry: `get_max_tokens_per_item_by_nonzero_modality(model_config)` returns the embeddings of the largest
            item by modality.

    Raises:
        ConfigError: items may not be split over steps, and the largest does not fit into one step.

    Source: vLLM 0.9's function of that name; it raises ValueError.
    """
    if not model_config.is_multimodal_model:
        return EncoderBudget(0, 0)
    by_modality = mm_registry.get_max_tokens_per_item_by_nonzero_modality(model_config)
    if not by_modality:
        log.warning("all modalities of the multimodal model are disabled: no encoder cache")
        return EncoderBudget(0, 0)
    return _budget(scheduler_config, max(by_modality.values()))


def service_encoder_budget(config: ServiceConfig) -> EncoderBudget:
    """Return the budgets of a service; raises as `compute_encoder_budget`."""
    if not config.is_multimodal_model:
        return EncoderBudget(0, 0)
    largest = max_embeds_per_item(config)
    if config.model.kind == "hf" and config.model.mode == "aligned":
        # A chunk is computed whole, with all items in it, of which the first and the last may reach beyond it.
        largest = config.model.chunk_tokens + 2 * largest
    return _budget(config, largest)


def make_encoder_cache_manager(scope: EncoderCacheScope, cache_size: int) -> EncoderCacheTable:
    """Return an empty manager of `cache_size` embeddings, with entries by content ("shared") or by request."""
    match scope:
        case "shared":
            return SharedEncoderCacheManager(cache_size)
        case "request":
            return EncoderCacheManager(cache_size)


def _budget(config: Any, largest: int) -> EncoderBudget:
    if config.disable_chunked_mm_input and largest > config.max_num_batched_tokens:
        raise ConfigError(
            "max_num_batched_tokens",
            config.max_num_batched_tokens,
            f"an item of {largest} embeddings may not be split (disable_chunked_mm_input): at least {largest}",
        )
    return EncoderBudget(max(config.max_num_encoder_input_tokens, largest), max(config.encoder_cache_size, largest))
