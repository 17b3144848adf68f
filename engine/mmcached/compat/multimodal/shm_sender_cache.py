"""Sender cache (P0) with processed items in a ring and their prompt updates here; receivers take leases on the items.

    get_and_update_item(item or None, key)
      hit               -> ShmItem(handle)               nothing is written
      hit, small        -> the item itself               kept here: cheaper to send than to lease
      miss, item        -> put into the ring, ShmItem    written once, for any number of readers
      miss, small       -> the item itself               kept here from now on
      miss, does not fit-> the item itself               sent inline, nothing is stored; counted
      miss, None        -> CacheMiss

Items smaller than `inline_below_bytes` are never put into the ring: they are kept in this process, with eviction of the
oldest, in a sixteenth of the ring's size.

Touched and returned items are not evicted before `release_sender_touches`: call it when the receivers have their items.
A later receiver may find that its item is gone: `CacheMiss`, and the item is sent once more.

Invariant: no key is in both places. Not thread-safe: it belongs to the thread that owns the ring.

Source: vLLM's `ShmObjectStoreSenderCache`, with leases that readers take instead of references that the writer counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from mmcached.cache.kinds import SMALL_SHARE
from mmcached.compat.multimodal.base import BaseMultiModalProcessorCache, SenderInput, SenderOutput
from mmcached.compat.multimodal.features import ResolvedPromptUpdate, ShmItem
from mmcached.compat.multimodal.items import MultiModalKwargsItem
from mmcached.compat.multimodal.lru_cache import CacheInfo, LRUCache
from mmcached.compat.multimodal.query_counter import QueryCounter
from mmcached.compat.multimodal.ring_items import RingItems
from mmcached.compat.multimodal.sizes import MultiModalCache, MultiModalProcessorCacheItem, is_within
from mmcached.shm import ObjectStoreWriter
from mmcached.shm.store.codec import Record, encode
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheFull, CacheMiss, ItemTooLarge, StaleHandle
from mmcached.wire.handle import Handle
from mmcached.wire.stats import ProcessorCacheStats


class ShmObjectStoreSenderCache(BaseMultiModalProcessorCache):
    """Key -> item in the ring.

    Args:
        config: Its `max_object_bytes` limits the items that are put; larger items are not even encoded.
        store: Store in the ring that this process writes; closed by its owner, after this cache. From now on all puts
            and removals go through this cache.
    """

    def __init__(self, config: ServiceConfig, store: ObjectStoreWriter) -> None:
        self._max_object_bytes = min(config.max_object_bytes, store.ring.max_object_bytes)
        self._inline_below_bytes = config.inline_below_bytes
        self._small: LRUCache[str, MultiModalProcessorCacheItem] = LRUCache(
            config.processor_cache_bytes // SMALL_SHARE, MultiModalCache.get_item_size
        )
        self._items: RingItems[Sequence[ResolvedPromptUpdate]] = RingItems(store)
        self._counter = QueryCounter()

    def is_cached_item(self, mm_hash: str) -> bool:
        return mm_hash in self._small or mm_hash in self._items

    def get_and_update_item(
        self, mm_item: SenderInput, mm_hash: str
    ) -> tuple[MultiModalKwargsItem | ShmItem, Sequence[ResolvedPromptUpdate]]:
        """Return the item's place in the ring (or the item, if it is small or does not fit), and its prompt updates.

        A hit ignores a given item: equal keys mean equal content.

        Raises:
            CacheMiss: The item is neither cached nor given; nothing has changed.
            InvalidRequest: The item contains an unsupported value; nothing has changed.
        """
        small = self._small.get(mm_hash)
        if small is not None:
            self._counter.count(hits=1, inline_items=1)
            return small.item, small.prompt_updates
        found = self._items.find(mm_hash)
        if found is not None:
            handle, updates = found
            self._counter.count_hit()
            return self._hand_out(mm_hash, handle), updates
        if mm_item is None:
            raise CacheMiss([mm_hash])
        item, prompt_updates = mm_item
        record = item.to_record()
        if is_within(record, self._inline_below_bytes - 1):
            self._keep(mm_hash, item, prompt_updates)
            self._counter.count(items_processed=1, inline_items=1)
            return item, prompt_updates
        place = self._put(mm_hash, record, prompt_updates)
        if place is None:
            self._counter.count(items_processed=1, inline_items=1, inline_fallbacks=1)
            return item, prompt_updates
        self._counter.count(items_processed=1)
        return self._hand_out(mm_hash, place), prompt_updates

    def get_and_update(self, mm_items: Sequence[SenderInput], mm_hashes: Sequence[str]) -> list[SenderOutput]:
        """Call `get_and_update_item` for each item of a request; a given item serves all positions with its key."""
        if len(mm_items) == len(mm_hashes):
            given = {key: item for item, key in zip(mm_items, mm_hashes, strict=True) if item is not None}
            mm_items = [given.get(key) if item is None else item for item, key in zip(mm_items, mm_hashes, strict=True)]
        return super().get_and_update(mm_items, mm_hashes)

    def touch_sender_cache_item(self, mm_hash: str) -> None:
        """Protect a present key from eviction until `release_sender_touches`; an absent one changes nothing."""
        self._items.touch(mm_hash)
        if mm_hash in self._small:
            self._small.touch(mm_hash)
            self._small.pin(mm_hash)

    def release_sender_touches(self) -> None:
        self._items.release_touches()
        for mm_hash in self._small.pinned_items:
            self._small.unpin(mm_hash)

    def invalidate(self, mm_hash: str) -> None:
        """Remove a key; readers with a lease go on reading. An absent key changes nothing."""
        self._small.pop(mm_hash)
        self._items.discard(mm_hash)

    def clear_cache(self) -> None:
        """Remove every key, and restart the counts of `make_stats`. Leased items stay readable; `stats` continues."""
        self._items.clear()
        self._small.clear()
        self._counter.clear()

    def remove_dangling_items(self) -> None:
        """Do nothing: prompt updates are removed with their chunk. Exists for callers of vLLM's class."""

    def address_as_item(self, address: int, monotonic_id: int) -> ShmItem:
        """Return a reference to a cached chunk, named by its slot and generation; does not protect it from eviction.

        Raises:
            StaleHandle: No item of this cache lies there.
        """
        for handle in self._items.handles():
            if (handle.slot, handle.generation) == (address, monotonic_id):
                return ShmItem(handle)
        raise StaleHandle(f"slot {address} has no item of generation {monotonic_id}")

    def make_stats(self, *, delta: bool = False) -> CacheInfo:
        return self._counter.make_stats(delta=delta)

    def stats(self) -> ProcessorCacheStats:
        """Return the counts since the start; `clear_cache` does not reset them."""
        return self._counter.stats

    def close(self) -> None:
        """End the touches and detach from the store, which stays open and keeps its records."""
        self._items.close()
        self._small.clear()

    def _keep(self, mm_hash: str, item: MultiModalKwargsItem, prompt_updates: Sequence[ResolvedPromptUpdate]) -> None:
        with contextlib.suppress(CacheFull):
            self._small.put_if_fits(mm_hash, MultiModalProcessorCacheItem(item, tuple(prompt_updates)))

    def _put(self, mm_hash: str, record: Record, prompt_updates: Sequence[ResolvedPromptUpdate]) -> Handle | None:
        """Write a record into the ring; return None if it does not fit now, or never."""
        try:
            encoded = encode(record, max_bytes=self._max_object_bytes)
        except ItemTooLarge:
            return None
        return self._items.put(mm_hash, encoded, tuple(prompt_updates))

    def _hand_out(self, mm_hash: str, handle: Handle) -> ShmItem:
        self._items.keep(mm_hash)
        return ShmItem(handle)
