"""Keeps items in the ring (mode `shm`), for any number of engines: written once, read in place.

    there, in the ring    a handle
    there, small          frames                        kept here: cheaper to send than to lease
    new                   put into the ring, a handle
    new, small            frames                        kept here from now on
    new, does not fit     frames                        stored nowhere, and counted

Small items are those below `inline_below_bytes`. They never see the ring, and take at most a sixteenth of its size.
What lies in a ring that was adopted from a former frontend is there as before; small items went with that.

Invariant: no key is in both places.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.frontend.caches.item_cache import ItemCache, OutgoingItem
from mmcached.frontend.caches.ring_items import RingItems
from mmcached.shm import ObjectStoreWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvariantError

if TYPE_CHECKING:
    from mmcached.frontend.processing.processor import Processed

SMALL_SHARE = 16
"""The small items that are kept here take at most this part of the ring's size."""
_NUM_EMBEDS = struct.Struct("<I")


class RingItemCache(ItemCache):
    """Key -> item in the ring, or here."""

    counts_hits = True

    def __init__(self, config: ServiceConfig, store: ObjectStoreWriter) -> None:
        super().__init__()
        self._inline_below_bytes = config.inline_below_bytes
        self._small: RequestLRU[Processed] = RequestLRU(config.processor_cache_bytes // SMALL_SHARE)
        self._ring: RingItems[int] = RingItems(store, _NUM_EMBEDS.pack, _unpack)

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in dict.fromkeys(keys) if key not in self._ring and key not in self._small]

    def resolve(self, keys: Sequence[str], given: Mapping[str, Processed]) -> list[OutgoingItem]:
        unique = list(dict.fromkeys(keys))
        # What is remembered or pinned from here on is there, whatever the request's own items evict.
        held = {key: self._small.find(key) for key in unique}
        for key in unique:
            self._ring.touch(key)
        items = {key: self._resolve_one(key, held[key], given) for key in unique}
        return [items[key] for key in keys]

    def release(self) -> None:
        self._ring.release_touches()

    def keep(self, key: str, item: Processed) -> None:
        if self.missing([key]):
            self._place(key, item)

    def clear(self) -> None:
        self._ring.clear()
        self._small.clear()

    def check_integrity(self) -> None:
        self._ring.check_integrity()
        self._small.check_integrity()
        twice = [key for key, _ in self._small.contents() if key in self._ring]
        if twice:
            raise InvariantError(f"item cache: {twice[:3]} lie in the ring and are kept here too")

    def _resolve_one(self, key: str, small: Entry[Processed] | None, given: Mapping[str, Processed]) -> OutgoingItem:
        if small is not None:
            self._num_hits += 1
            self._small.move([key], [small])
            return OutgoingItem.inline(key, small.value)
        found = self._ring.find(key)
        if found is None:
            item = self._place(key, given[key])
        else:
            self._num_hits += 1
            handle, num_embeds = found
            item = OutgoingItem(key, handle.nbytes, num_embeds, handle)
        self._ring.touch(key)
        return item

    def _place(self, key: str, item: Processed) -> OutgoingItem:
        """Keep a new item where it belongs, if there is room, and count it."""
        self._num_new += 1
        nbytes = item.encoded.nbytes
        if nbytes < self._inline_below_bytes:
            self._small.move([key], [Entry(nbytes, item)])
            return OutgoingItem.inline(key, item)
        handle = self._ring.put(key, item.encoded, item.num_embeds)
        if handle is None:
            self._num_fallbacks += 1
            return OutgoingItem.inline(key, item)
        return OutgoingItem(key, nbytes, item.num_embeds, handle)


def _unpack(about: bytes) -> int | None:
    """Return the number of embeddings behind an item of a former frontend; None: it is no item."""
    return _NUM_EMBEDS.unpack(about)[0] if len(about) == _NUM_EMBEDS.size else None
