"""The parts of a cache of processed items on which both ends must agree: its kind, the LRU rule, and names.

    hasher       content keys, from the bytes of a file
    hashing/     content keys of KV blocks, from tokens and items
    kinds        the kind of cache for a configuration
    request_lru  the LRU update that P0 and P1 both make
    clip_keys    keys of a clip: of its file, its options, its slices
    store_keys   the name of a tenant's record in the store, and the key of an encoder's output
    stored_names the tenants and keys of the records in a ring
    fingerprints the fingerprint of everything besides the item that an output depends on
    checkpoints/ the number of an item's embeddings, from a checkpoint's small files
    compat/      vLLM-shaped items, sizes, bases and LRU cache, for programs without the service

Imports neither numpy nor torch, except `hasher` and `stored_names`, which import numpy and are imported where they are
used.
"""

from mmcached.cache.compat.base import (
    BaseMultiModalCache,
    BaseMultiModalProcessorCache,
    BaseMultiModalReceiverCache,
    ReceiverInput,
    SenderInput,
    SenderOutput,
)
from mmcached.cache.compat.features import MultiModalFeatureSpec, PlaceholderRange, ResolvedPromptUpdate, ShmItem
from mmcached.cache.compat.items import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
)
from mmcached.cache.compat.lru import CacheInfo, LRUCache
from mmcached.cache.compat.nested import NestedTensors
from mmcached.cache.compat.query_counter import QueryCounter
from mmcached.cache.compat.sizes import (
    MultiModalCache,
    MultiModalProcessorCacheItem,
    MultiModalProcessorCacheItemMetadata,
)
from mmcached.cache.kinds import ProcessorCacheKind, processor_cache_kind
from mmcached.cache.request_lru import Entry, RequestLRU

__all__ = [
    "BaseMultiModalCache",
    "BaseMultiModalProcessorCache",
    "BaseMultiModalReceiverCache",
    "CacheInfo",
    "Entry",
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
    "PlaceholderRange",
    "ProcessorCacheKind",
    "QueryCounter",
    "ReceiverInput",
    "RequestLRU",
    "ResolvedPromptUpdate",
    "SenderInput",
    "SenderOutput",
    "ShmItem",
    "processor_cache_kind",
]
