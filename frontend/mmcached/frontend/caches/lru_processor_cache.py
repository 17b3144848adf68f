"""What the two processor caches of P0 that are not the ring have in common: an LRU of sized values, asked by request.

They differ in the value that stands for an item, and in what is sent in its place:

    MultiModalProcessorOnlyCache     item and prompt updates      the item, always
    MultiModalProcessorSenderCache   prompt updates               the item once, then None

A given item whose key is there already is ignored: the key says its content. Not thread-safe.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from mmcached.cache import (
    BaseMultiModalProcessorCache,
    CacheInfo,
    Entry,
    MultiModalCache,
    MultiModalKwargsItem,
    QueryCounter,
    RequestLRU,
    ResolvedPromptUpdate,
    SenderInput,
)
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss
from mmcached.wire.stats import ProcessorCacheStats

V = TypeVar("V")


class Taken(NamedTuple, Generic[V]):
    """What one item of a request gets: the value kept for it, and the item itself if it was not there before."""

    value: V
    new_item: MultiModalKwargsItem | None


class LruProcessorCache(BaseMultiModalProcessorCache, Generic[V]):
    """Key -> value; at most `processor_cache_bytes` of items, of which the least recently used go first."""

    def __init__(self, config: ServiceConfig) -> None:
        self._lru: RequestLRU[V] = RequestLRU(config.processor_cache_bytes)
        self._counter = QueryCounter()

    def is_cached_item(self, mm_hash: str) -> bool:
        return mm_hash in self._lru

    def touch_sender_cache_item(self, mm_hash: str) -> None:
        """Make a present key young; an absent one changes nothing.

        Nothing is pinned: `get_and_update` of a whole request serves also what the request itself evicts.
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

    @abstractmethod
    def _value_of(self, item: MultiModalKwargsItem, prompt_updates: Sequence[ResolvedPromptUpdate]) -> V:
        """Return what to keep of an item."""

    def _take(self, mm_items: Sequence[SenderInput], mm_hashes: Sequence[str]) -> list[Taken[V]]:
        """Move by one request, whose items were given or are here, and count it.

        Raises:
            CacheMiss: names all that are missing, each once, in order. The items that came with data are kept.
            ValueError: the lists differ in length; nothing has changed.
        """
        if len(mm_items) != len(mm_hashes):
            raise ValueError(f"{len(mm_items)} items for {len(mm_hashes)} hashes")
        known = {mm_hash for mm_hash in mm_hashes if mm_hash in self._lru}
        new_items: list[MultiModalKwargsItem | None] = []
        given: list[Entry[V] | None] = []
        for mm_item, mm_hash in zip(mm_items, mm_hashes, strict=True):
            if mm_item is None or mm_hash in known:
                new_items.append(None)
                given.append(None)
            else:
                item, prompt_updates = mm_item
                known.add(mm_hash)
                new_items.append(item)
                given.append(Entry(MultiModalCache.get_item_size(item), self._value_of(item, prompt_updates)))
        found = self._lru.move(mm_hashes, given)
        self._count(found, given)
        missing = [mm_hash for mm_hash, entry in zip(mm_hashes, found, strict=True) if entry is None]
        if missing:
            raise CacheMiss(list(dict.fromkeys(missing)))
        return [Taken(entry.value, item) for entry, item in zip(found, new_items, strict=True) if entry is not None]

    def _take_one(self, mm_item: SenderInput, mm_hash: str) -> Taken[V]:
        """As `_take`, for a request of one item, as most are."""
        entry = self._lru.touch(mm_hash)
        if entry is not None:
            self._counter.count_hit()
            return Taken(entry.value, None)
        if mm_item is None:
            raise CacheMiss([mm_hash])
        item, prompt_updates = mm_item
        new = Entry(MultiModalCache.get_item_size(item), self._value_of(item, prompt_updates))
        self._lru.move([mm_hash], [new])
        self._count([new], [new])
        return Taken(new.value, item)

    def _count(self, found: Sequence[Entry[V] | None], new: Sequence[Entry[V] | None]) -> None:
        num_new = sum(entry is not None for entry in new)
        self._counter.count(
            hits=sum(entry is not None for entry in found) - num_new,
            items_processed=num_new,
            inline_items=num_new,
            inline_fallbacks=sum(entry is not None and entry.nbytes > self._lru.capacity for entry in new),
        )
