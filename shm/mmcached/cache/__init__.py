"""The parts of a cache of processed items on which both ends must agree: its kind, the LRU rule, and names.

hasher       content keys of files                    hashing/      content keys of KV blocks
kinds        the kind of cache of a configuration     request_lru   the LRU update that P0 and P1 both make
clip_keys    keys of a clip and its slices            store_keys    names of records, keys of encoder outputs
stored_names tenants and keys in a ring               fingerprints  all besides the item that an output depends on
checkpoints/ embeddings of an item, by a checkpoint   compat/       vLLM-shaped items and caches without the service

Imports neither numpy nor torch, except `hasher` and `stored_names`, which import numpy where they are used.
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
