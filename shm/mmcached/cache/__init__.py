"""What both ends of a cache of processed items must agree on: items, sizes, the LRU rule, and the abstract bases.

    nested    arrays in lists and dicts, without knowing numpy or torch
    items     an item and its record, the form in which it travels
    features  where an item belongs in a prompt; what P0 sends to P1
    lru       the LRU cache
    sizes     how large an item counts
    kinds     which kind of cache a configuration asks for
    request_lru    the move that P0 and P1 make alike
    query_counter  what a cache of P0 was asked
    store_keys     the name of a tenant's record in the store
    base      the contract of all caches, both sides

Knows nothing of sockets, or of how a ring works; imports neither numpy nor torch.
"""

from mmcached.cache.base import (
    BaseMultiModalCache,
    BaseMultiModalProcessorCache,
    BaseMultiModalReceiverCache,
    ReceiverInput,
    SenderInput,
    SenderOutput,
)
from mmcached.cache.features import MultiModalFeatureSpec, PlaceholderRange, ResolvedPromptUpdate, ShmItem
from mmcached.cache.items import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
)
from mmcached.cache.kinds import ProcessorCacheKind, processor_cache_kind
from mmcached.cache.lru import CacheInfo, LRUCache
from mmcached.cache.nested import NestedTensors
from mmcached.cache.query_counter import QueryCounter
from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.cache.sizes import MultiModalCache, MultiModalProcessorCacheItem, MultiModalProcessorCacheItemMetadata

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
