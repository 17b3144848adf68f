"""How much the encoder may compute in one step and keep overall, in embeddings, and which book keeps count."""

from __future__ import annotations

from mmcached.engine.encoder_cache_book import EncoderCacheBook, EncoderCacheScope
from mmcached.engine.encoder_cache_manager import EncoderCacheManager
from mmcached.engine.shared_encoder_cache_manager import SharedEncoderCacheManager
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError


def compute_encoder_budget(config: ServiceConfig) -> tuple[int, int]:
    """Return (embeddings computed per step, embeddings kept), each raised to the largest item, so that any item fits.

    (0, 0) for a model without multimodal input.

    Raises:
        ConfigError: items may not be split over steps, and the largest does not fit into one.

    Source: vLLM's function of that name.
    """
    if not config.is_multimodal_model:
        return 0, 0
    largest = config.model.max_patches_per_image
    if config.disable_chunked_mm_input and largest > config.max_num_batched_tokens:
        raise ConfigError(
            "max_num_batched_tokens",
            config.max_num_batched_tokens,
            f"an item of {largest} embeddings may not be split (disable_chunked_mm_input): at least {largest}",
        )
    return max(config.max_num_encoder_input_tokens, largest), max(config.encoder_cache_size, largest)


def make_encoder_cache_manager(scope: EncoderCacheScope, cache_size: int) -> EncoderCacheBook:
    """Return empty books for `cache_size` embeddings, with entries by content ("shared") or by request."""
    match scope:
        case "shared":
            return SharedEncoderCacheManager(cache_size)
        case "request":
            return EncoderCacheManager(cache_size)
