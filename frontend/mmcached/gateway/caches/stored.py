"""Items kept as records of the store (mode `shm`), for any number of engines: written once, read in place.

    known, in the store   a handle                      pinned until `release`
    known, small          frames                        kept here: cheaper to send than to lease
    new                   put into the store, a handle  pinned until `release`
    new, small            frames                        kept here from now on
    new, does not fit     frames                        not stored, and counted

Small items are those below `inline_below_bytes`; they take at most 1/16 of the items' share of the ring. Items in a
ring that was adopted from a former frontend are kept; small items ended with that frontend.

Invariant: no key is in both places.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mmcached.cache.kinds import SMALL_SHARE
from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.gateway.caches.item_cache import ItemCache, OutgoingItem
from mmcached.gateway.caches.item_records import ItemRecords
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import Handle
from mmcached.wire.vocabulary import Modality


class StoredItemCache(ItemCache):
    """Items by key, in the store or here."""

    counts_hits = True

    def __init__(self, config: ServiceConfig, items: ItemRecords) -> None:
        super().__init__()
        self._inline_below_bytes = config.inline_below_bytes
        self._max_bytes = config.max_object_bytes
        self._small: RequestLRU[GatewayItem] = RequestLRU(config.processor_cache_bytes // SMALL_SHARE)
        self._items = items

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in dict.fromkeys(keys) if key not in self._small and self._items.find(key) is None]

    def resolve(self, keys: Sequence[str], given: Mapping[str, GatewayItem]) -> list[OutgoingItem]:
        unique = list(dict.fromkeys(keys))
        # Items that are found or pinned here stay, even if the request's own items evict others.
        found = {key: self._find(key) for key in unique}
        items = {key: self._resolve_one(key, found[key], given) for key in unique}
        return [items[key] for key in keys]

    def count_saved(self, modalities: Mapping[str, Modality], tenant: str) -> None:
        for key, modality in modalities.items():
            self._items.count_saved(key, modality, tenant)

    def release(self, items: Sequence[OutgoingItem]) -> None:
        for handle in _handles(items):
            self._items.unpin(handle)

    def inline(self, items: Sequence[OutgoingItem]) -> list[OutgoingItem]:
        return [
            replace(item, payload=self._items.frames(item.payload)) if isinstance(item.payload, Handle) else item
            for item in items
        ]

    def keep(self, key: str, item: GatewayItem) -> None:
        if self.missing([key]):
            self._place(key, item, is_pinned=False)

    def clear(self) -> None:
        self._items.clear()
        self._small.clear()

    def _find(self, key: str) -> Entry[GatewayItem] | OutgoingItem | None:
        """Return an item that is kept here or in the store; an item in the store is pinned."""
        small = self._small.find(key)
        if small is not None:
            return small
        found = self._items.find(key)
        if found is None:
            return None
        handle, num_embeds = found
        self._items.touch(key, handle)
        self._items.pin(handle)
        return OutgoingItem(key, handle.nbytes, num_embeds, handle)

    def _resolve_one(
        self, key: str, found: Entry[GatewayItem] | OutgoingItem | None, given: Mapping[str, GatewayItem]
    ) -> OutgoingItem:
        if found is None:
            return self._place(key, given[key], is_pinned=True)
        self._num_hits += 1
        if isinstance(found, OutgoingItem):
            return found
        self._small.move([key], [found])
        return OutgoingItem.inline(key, found.value)

    def _place(self, key: str, item: GatewayItem, *, is_pinned: bool) -> OutgoingItem:
        self._num_new += 1
        nbytes = item.encoded.nbytes
        if nbytes < self._inline_below_bytes:
            self._small.move([key], [Entry(nbytes, item)])
            return OutgoingItem.inline(key, item)
        is_kept = nbytes <= self._max_bytes
        handle = self._items.put(key, *item) if is_kept else None
        if handle is None:
            self._num_fallbacks += 1
            return OutgoingItem.inline(key, item)
        if is_pinned:
            self._items.pin(handle)
        return OutgoingItem(key, nbytes, item.num_embeds, handle)


def _handles(items: Sequence[OutgoingItem]) -> Iterator[Handle]:
    places = {item.mm_hash: item.payload for item in items}
    return (place for place in places.values() if isinstance(place, Handle))
