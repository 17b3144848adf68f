"""Creates the processor cache that a configuration selects."""

from __future__ import annotations

from typing import assert_never

from mmcached.cache.kinds import processor_cache_kind
from mmcached.cache.request_lru import RequestLRU
from mmcached.gateway.caches.item_cache import ItemCache
from mmcached.gateway.caches.item_records import ItemRecords
from mmcached.gateway.caches.local import LocalItemCache
from mmcached.gateway.caches.mirrored import MirroredItemCache
from mmcached.gateway.caches.stored import StoredItemCache
from mmcached.wire.config import ServiceConfig


def item_cache_from_config(config: ServiceConfig, items: ItemRecords) -> ItemCache:
    """Return the frontend's processor cache.

    Args:
        records: The store in which mode `shm` keeps items.
    """
    match processor_cache_kind(config):
        case "off":
            return ItemCache()
        case "processor_only":
            return LocalItemCache(config.processor_cache_bytes)
        case "lru":
            return MirroredItemCache(RequestLRU(config.processor_cache_bytes))
        case "shm":
            return StoredItemCache(config, items)
        case other:
            assert_never(other)
