"""LRU processor caches of P0 that keep items or their sizes outside the ring, updated by whole requests.

    class                            kept for an item           returned
    MultiModalProcessorOnlyCache     item and prompt updates    the item, always
    MultiModalProcessorSenderCache   prompt updates             the item once, then None: the receiver has it

A given item whose key is already present is ignored: equal keys mean equal content. A returned item counts as sent: the
sender cache updates its order at once, as the receiver will. Not thread-safe.

Source: vLLM's classes of these names; there an item larger than the cache was an error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.compat.multimodal.base import BaseMultiModalProcessorCache, SenderInput, SenderOutput
from mmcached.compat.multimodal.features import ResolvedPromptUpdate
from mmcached.compat.multimodal.items import MultiModalKwargsItem
from mmcached.compat.multimodal.lru_cache import CacheInfo
from mmcached.compat.multimodal.query_counter import QueryCounter
from mmcached.compat.multimodal.sizes import MultiModalCache, MultiModalProcessorCacheItem
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss
from mmcached.wire.stats import ProcessorCacheStats

V = TypeVar("V")
PromptUpdates = tuple[ResolvedPromptUpdate, ...]


class LruProcessorCache(BaseMultiModalProcessorCache, Generic[V]):
    """Key -> value; at most `processor_cache_bytes` of items, with eviction of the least recently used."""

    def __init__(self, config: ServiceConfig) -> None:
        self._lru: RequestLRU[V] = RequestLRU(config.processor_cache_bytes)
        self._counter = QueryCounter()

    @abstractmethod
    def _value_of(self, item: MultiModalKwargsItem, prompt_updates: Sequence[ResolvedPromptUpdate]) -> V:
        """Return the value to keep for an item."""

    @abstractmethod
    def _output(self, value: V, new_item: MultiModalKwargsItem | None) -> SenderOutput:
        """Return the output for a value; `new_item` is the item itself if it was not cached before."""

    def is_cached_item(self, mm_hash: str) -> bool:
        return mm_hash in self._lru

    def get_and_update_item(self, mm_item: SenderInput, mm_hash: str) -> SenderOutput:
        entry = self._lru.touch(mm_hash)
        if entry is not None:
            self._counter.count_hit()
            return self._output(entry.value, None)
        if mm_item is None:
            raise CacheMiss([mm_hash])
        new = self._new(*mm_item)
        self._lru.move([mm_hash], [new])
        return self._output(new.value, mm_item[0])

    def get_and_update(self, mm_items: Sequence[SenderInput], mm_hashes: Sequence[str]) -> list[SenderOutput]:
        if len(mm_items) != len(mm_hashes):
            raise ValueError(f"{len(mm_items)} items for {len(mm_hashes)} hashes")
        if len(mm_items) == 1:
            return [self.get_and_update_item(mm_items[0], mm_hashes[0])]
        known = {mm_hash for mm_hash in mm_hashes if mm_hash in self._lru}
        new_items: list[MultiModalKwargsItem | None] = []
        given: list[Entry[V] | None] = []
        for mm_item, mm_hash in zip(mm_items, mm_hashes, strict=True):
            if mm_item is None or mm_hash in known:
                new_items.append(None)
                given.append(None)
            else:
                known.add(mm_hash)
                new_items.append(mm_item[0])
                given.append(self._new(*mm_item))
        found = self._lru.move(mm_hashes, given)
        self._counter.count(hits=sum(entry is not None for entry in found) - sum(entry is not None for entry in given))
        missing = [mm_hash for mm_hash, entry in zip(mm_hashes, found, strict=True) if entry is None]
        if missing:
            raise CacheMiss(list(dict.fromkeys(missing)))
        return [
            self._output(entry.value, item) for entry, item in zip(found, new_items, strict=True) if entry is not None
        ]

    def touch_sender_cache_item(self, mm_hash: str) -> None:
        """Mark a present key as recently used; an absent one changes nothing.

        Nothing is pinned: `get_and_update` of a whole request also serves items that the request itself evicts.
        """
        self._lru.touch(mm_hash)

    def invalidate(self, mm_hash: str) -> None:
        self._lru.discard(mm_hash)

    def clear_cache(self) -> None:
        self._lru.clear()
        self._counter.clear()

    def make_stats(self, *, delta: bool = False) -> CacheInfo:
        return self._counter.make_stats(delta=delta)

    def stats(self) -> ProcessorCacheStats:
        return self._counter.stats

    def contents(self) -> list[tuple[str, int]]:
        """Return `(key, bytes)` of all entries, the oldest first."""
        return self._lru.contents()

    def check_integrity(self) -> None:
        self._lru.check_integrity()
        self._counter.check_integrity()

    def close(self) -> None:
        self._lru.clear()

    def _new(self, item: MultiModalKwargsItem, prompt_updates: Sequence[ResolvedPromptUpdate]) -> Entry[V]:
        """Return the entry of a new item, and count the item."""
        nbytes = MultiModalCache.get_item_size(item)
        self._counter.count(items_processed=1, inline_items=1, inline_fallbacks=int(nbytes > self._lru.capacity))
        return Entry(nbytes, self._value_of(item, prompt_updates))


class MultiModalProcessorOnlyCache(LruProcessorCache[MultiModalProcessorCacheItem]):
    """Key -> item and prompt updates. The receiver keeps nothing, so there may be any number of either."""

    def _value_of(
        self, item: MultiModalKwargsItem, prompt_updates: Sequence[ResolvedPromptUpdate]
    ) -> MultiModalProcessorCacheItem:
        return MultiModalProcessorCacheItem(item, tuple(prompt_updates))

    def _output(self, value: MultiModalProcessorCacheItem, new_item: MultiModalKwargsItem | None) -> SenderOutput:
        return value.item, value.prompt_updates


class MultiModalProcessorSenderCache(LruProcessorCache[PromptUpdates]):
    """Key -> size and prompt updates of an item that the receiver holds."""

    def _value_of(self, item: MultiModalKwargsItem, prompt_updates: Sequence[ResolvedPromptUpdate]) -> PromptUpdates:
        return tuple(prompt_updates)

    def _output(self, value: PromptUpdates, new_item: MultiModalKwargsItem | None) -> SenderOutput:
        return new_item, value
