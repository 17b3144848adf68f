"""Creates the processor cache that a configuration selects."""

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
    """Create P0's processor cache; return None if it is off: then every item is processed and sent inline.

        processor_cache_kind(config)
        off              None
        shm              ShmObjectStoreSenderCache           None without a ring
        lru              MultiModalProcessorSenderCache
        processor_only   MultiModalProcessorOnlyCache

    Args:
        store: Store in the ring that this process writes; None without a ring.
        mm_registry: Accepted for callers of vLLM's function, and ignored.
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
    """Create a cache that keeps processed items and sends none; return None if caching is off.

    Args:
        mm_registry: Accepted for callers of vLLM's function, and ignored.
    """
    return None if processor_cache_kind(config) == "off" else MultiModalProcessorOnlyCache(config)
