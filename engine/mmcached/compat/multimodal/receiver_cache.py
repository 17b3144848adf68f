"""Receiver cache (P1) that mirrors P0's sender cache: keeps received items, so that later requests need not send them.

Both processes apply the same step of `mmcached.cache.request_lru` with the sizes of `MultiModalCache.get_item_size`. A
received item replaces a cached one.

Source: vLLM's `MultiModalReceiverCache`, and its later typed miss; the first kept the old item in that case.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.cache.kinds import processor_cache_kind
from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.compat.multimodal.base import BaseMultiModalReceiverCache, ReceiverInput
from mmcached.compat.multimodal.features import MultiModalFeatureSpec, ShmItem
from mmcached.compat.multimodal.items import MultiModalKwargsItem
from mmcached.compat.multimodal.sizes import MultiModalCache
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, LocalProtocolError

Found = Sequence[Entry[MultiModalKwargsItem] | None]


class MultiModalReceiverCache(BaseMultiModalReceiverCache):
    """Key -> item; at most `processor_cache_bytes`, with eviction of the least recently used items."""

    def __init__(self, config: ServiceConfig) -> None:
        self._lru: RequestLRU[MultiModalKwargsItem] = RequestLRU(config.processor_cache_bytes)

    def touch_receiver_cache_item(self, mm_hash: str, mm_item: ReceiverInput = None) -> None:
        self._lru.touch(mm_hash)

    def get_and_update_item(self, mm_item: ReceiverInput, mm_hash: str) -> MultiModalKwargsItem:
        """Return the given item, which is kept if it fits, else the cached one.

        Raises:
            CacheMiss: The item is neither given nor cached; nothing has changed.
            LocalProtocolError: The item lies in a ring, which this cache does not read.
        """
        entry = self._lru.touch(mm_hash) if mm_item is None else self._move([mm_item], [mm_hash])[0]
        if entry is None:
            raise CacheMiss([mm_hash])
        return entry.value

    def get_and_update(self, mm_items: Sequence[ReceiverInput], mm_hashes: Sequence[str]) -> list[MultiModalKwargsItem]:
        if len(mm_items) != len(mm_hashes):
            raise ValueError(f"{len(mm_items)} items for {len(mm_hashes)} hashes")
        if len(mm_items) == 1:
            return [self.get_and_update_item(mm_items[0], mm_hashes[0])]
        found = self._move(mm_items, mm_hashes)
        _check_misses(mm_hashes, found)
        return [entry.value for entry in found if entry is not None]

    def get_and_update_features(self, mm_features: Sequence[MultiModalFeatureSpec]) -> list[MultiModalFeatureSpec]:
        keys = [feature.cache_key for feature in mm_features]
        found = self._move([feature.data for feature in mm_features], keys)
        for feature, entry in zip(mm_features, found, strict=True):
            if entry is not None:
                feature.data = entry.value
        _check_misses(keys, found)
        return list(mm_features)

    def clear_cache(self) -> None:
        self._lru.clear()

    def contents(self) -> list[tuple[str, int]]:
        """Return `(key, bytes)` of all entries, the oldest first."""
        return self._lru.contents()

    def check_integrity(self) -> None:
        self._lru.check_integrity()

    def close(self) -> None:
        self._lru.clear()

    def _move(self, mm_items: Sequence[ReceiverInput], keys: Sequence[str]) -> Found:
        return self._lru.move(keys, [None if mm_item is None else _entry_of(mm_item) for mm_item in mm_items])


def engine_receiver_cache_from_config(
    config: ServiceConfig, mm_registry: object = None
) -> MultiModalReceiverCache | None:
    """Create an engine's receiver cache; None if no cache is mirrored. `mm_registry` is ignored (vLLM's callers)."""
    return MultiModalReceiverCache(config) if processor_cache_kind(config) == "lru" else None


def _entry_of(mm_item: MultiModalKwargsItem | ShmItem) -> Entry[MultiModalKwargsItem]:
    if isinstance(mm_item, ShmItem):
        raise LocalProtocolError("an item in a ring is for the receiver cache of a worker, which reads it")
    return Entry(MultiModalCache.get_item_size(mm_item), mm_item)


def _check_misses(keys: Sequence[str], found: Found) -> None:
    if None in found:
        raise CacheMiss([key for key, entry in dict(zip(keys, found, strict=True)).items() if entry is None])
