"""The parts of a cache of processed items on which both ends must agree: its kind, the LRU rule, and names.

hasher       content keys of files                    hashing/      content keys of KV blocks
kinds        the kind of cache of a configuration     request_lru   the LRU update that P0 and P1 both make
clip_keys    keys of a clip and its slices            store_keys    names of records, keys of encoder outputs
aliases      names of media: keys and records of bindings
stored_names tenants and keys in a ring               fingerprints  all besides the item that an output depends on
checkpoints/ embeddings of an item, by a checkpoint

Imports neither numpy nor torch, except `hasher` and `stored_names`, which import numpy where they are used. The names
below belong to classes in `mmcached.compat` and are imported lazily.
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
