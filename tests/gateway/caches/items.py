"""Processed items of any size, for tests of the caches that keep them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmcached.gateway.caches.item_cache import ItemCache, OutgoingItem
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.shm.store.codec import encode

SMALL_BYTES = 256


def an_item(value: int = 0, nbytes: int = SMALL_BYTES) -> GatewayItem:
    """Return an item told apart by `value`; its encoded form is some bytes larger than `nbytes`."""
    return GatewayItem(encode({"data": np.full(nbytes, value % 256, np.uint8)}), value + 1)


def send(cache: ItemCache, *keys: str, nbytes: int = SMALL_BYTES, is_accepted: bool = True) -> Sequence[OutgoingItem]:
    """Process what a request misses, and send it; the item of a key is always the same."""
    items = cache.resolve(keys, {key: an_item(int(key), nbytes) for key in cache.missing(keys)})
    if is_accepted:
        cache.sent(items)
    cache.release(items)
    return items
