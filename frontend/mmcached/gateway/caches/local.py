"""Whole items kept in the frontend (mode `processor_only`): saves the processing, not the sending.

Engines keep no items, so any number of frontends and engines may be combined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.gateway.caches.item_cache import ItemCache, OutgoingItem
from mmcached.gateway.processing.processor import GatewayItem


class LocalItemCache(ItemCache):
    """Key -> item, at most `capacity` bytes of encoded items."""

    counts_hits = True

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._lru: RequestLRU[GatewayItem] = RequestLRU(capacity)

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in dict.fromkeys(keys) if key not in self._lru]

    def resolve(self, keys: Sequence[str], given: Mapping[str, GatewayItem]) -> list[OutgoingItem]:
        unique = list(dict.fromkeys(keys))
        new = {key: self._entry(given[key]) for key in self.missing(unique)}
        self._num_hits += len(unique) - len(new)
        # As a whole: an item that others of this request evict is served all the same.
        found = self._lru.move(unique, [new.get(key) for key in unique])
        items = {
            key: OutgoingItem.inline(key, entry.value)
            for key, entry in zip(unique, found, strict=True)
            if entry is not None
        }
        return [items[key] for key in keys]

    def keep(self, key: str, item: GatewayItem) -> None:
        if self.missing([key]):
            self._lru.move([key], [self._entry(item)])

    def clear(self) -> None:
        self._lru.clear()

    def _entry(self, item: GatewayItem) -> Entry[GatewayItem]:
        self._num_new += 1
        self._num_fallbacks += item.encoded.nbytes > self._lru.capacity
        return Entry(item.encoded.nbytes, item)
