"""Both ends of a cache of processed items agree here: on the kind of cache, on the LRU rule, on names.

    hasher       content keys, from the bytes of a file
    hashing/     content keys of KV blocks, from tokens and items
    kinds        the kind of cache that a configuration asks for
    request_lru  the move that P0 and P1 make alike
    clip_keys    the names of a clip: of its file, of what is wanted of it, of its slices
    store_keys   the name of a tenant's record in the store, and the key of an encoder's output
    stored_names the tenants and keys of the records in a ring
    fingerprints the name of all that an output depends on beside the item
    checkpoints/ how many embeddings a picture has, by a checkpoint's small files

Imports neither numpy nor torch; `hasher` and `stored_names`, which are imported where they are used, numpy.

The names below are of classes in `mmcached.compat`, and are imported when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmcached.compat.multimodal.base import (
        BaseMultiModalCache,
        BaseMultiModalProcessorCache,
        BaseMultiModalReceiverCache,
    )
    from mmcached.compat.multimodal.features import MultiModalFeatureSpec, ResolvedPromptUpdate
    from mmcached.compat.multimodal.items import (
        MultiModalBatchedField,
        MultiModalFieldElem,
        MultiModalKwargsItem,
        MultiModalKwargsItems,
    )
    from mmcached.compat.multimodal.lru_cache import CacheInfo, LRUCache
    from mmcached.compat.multimodal.nested import NestedTensors
    from mmcached.compat.multimodal.sizes import (
        MultiModalCache,
        MultiModalProcessorCacheItem,
        MultiModalProcessorCacheItemMetadata,
    )

__all__ = [
    "BaseMultiModalCache",
    "BaseMultiModalProcessorCache",
    "BaseMultiModalReceiverCache",
    "CacheInfo",
    "LRUCache",
    "MultiModalBatchedField",
    "MultiModalCache",
    "MultiModalFeatureSpec",
    "MultiModalFieldElem",
    "MultiModalKwargsItem",
    "MultiModalKwargsItems",
    "MultiModalProcessorCacheItem",
    "MultiModalProcessorCacheItemMetadata",
    "NestedTensors",
    "ResolvedPromptUpdate",
]

_MODULES = {
    "BaseMultiModalCache": "base",
    "BaseMultiModalProcessorCache": "base",
    "BaseMultiModalReceiverCache": "base",
    "CacheInfo": "lru_cache",
    "LRUCache": "lru_cache",
    "MultiModalBatchedField": "items",
    "MultiModalCache": "sizes",
    "MultiModalFeatureSpec": "features",
    "MultiModalFieldElem": "items",
    "MultiModalKwargsItem": "items",
    "MultiModalKwargsItems": "items",
    "MultiModalProcessorCacheItem": "sizes",
    "MultiModalProcessorCacheItemMetadata": "sizes",
    "NestedTensors": "nested",
    "ResolvedPromptUpdate": "features",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"mmcached.compat.multimodal.{_MODULES[name]}"), name)
