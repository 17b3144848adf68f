"""Tells the connector when vLLM's weights have changed, since nobody else does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

from mmcached.integrations.vllm.weights import note_reset

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class MmcachedEncoderCacheManager(EncoderCacheManager):
    """vLLM's own manager; what was encoded before a `reset` is neither found nor offered by this engine after it."""

    _engine_id: str | None = None

    @classmethod
    def create_manager(cls, *, cache_size: int, vllm_config: VllmConfig) -> Self:
        manager = cls(cache_size=cache_size)
        if vllm_config.ec_transfer_config is not None:
            manager._engine_id = vllm_config.ec_transfer_config.engine_id
        return manager

    def reset(self) -> None:
        super().reset()
        note_reset(self._engine_id)
