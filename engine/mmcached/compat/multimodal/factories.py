"""Chooses the processor cache that a configuration asks for."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from mmcached.cache.kinds import processor_cache_kind
from mmcached.compat.multimodal.sender_caches import MultiModalProcessorOnlyCache, MultiModalProcessorSenderCache
from mmcached.compat.multimodal.shm_sender_cache import ShmObjectStoreSenderCache
from mmcached.shm import ObjectStoreWriter
from mmcached.wire.config import ServiceConfig

ProcessorCache: TypeAlias = ShmObjectStoreSenderCache | MultiModalProcessorSenderCache | MultiModalProcessorOnlyCache


def processor_cache_from_config(
    config: ServiceConfig, store: ObjectStoreWriter | None, *, mm_registry: object = None
) -> ProcessorCache | None:
    """Return P0's processor cache, or None when it is switched off: then every item is processed and travels inline.

        processor_cache_kind(config)
        off              None
        shm              ShmObjectStoreSenderCache           None without a ring
        lru              MultiModalProcessorSenderCache
        processor_only   MultiModalProcessorOnlyCache

    Args:
        store: of the ring that this process writes; None when there is no ring.
        mm_registry: accepted for callers of vLLM's function, and not used: the configuration says it all.
    """
    match processor_cache_kind(config):
        case "off":
            return None
        case "shm":
            return None if store is None else ShmObjectStoreSenderCache(config, store)
        case "lru":
            return MultiModalProcessorSenderCache(config)
        case "processor_only":
            return MultiModalProcessorOnlyCache(config)
        case other:
            assert_never(other)


def processor_only_cache_from_config(
    config: ServiceConfig, mm_registry: object = None
) -> MultiModalProcessorOnlyCache | None:
    """Return a cache that processes items and sends them nowhere, or None when caching is switched off.

    Args:
        mm_registry: see `processor_cache_from_config`.
    """
    return None if processor_cache_kind(config) == "off" else MultiModalProcessorOnlyCache(config)
