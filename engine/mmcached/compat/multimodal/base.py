"""Contract of every cache of processed items, on the sender's side (P0) and the receiver's side (P1).

    P0, sender side                                   P1, receiver side
    touch every key of a request                      touch every key of a request
    get_and_update each item, in prompt order   ->    get_and_update each item, in prompt order
    release_sender_touches once it was sent

The first pass protects a key that the request will use from eviction by an earlier insert of the same request. A miss
is a `CacheMiss` that names all missing items at once, each once, in order; items that came with data are stored all the
same.

Source: the abstract classes of vLLM's `multimodal/cache`, both rounds of its touch rule, its batched miss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from mmcached.compat.multimodal.features import MultiModalFeatureSpec, ResolvedPromptUpdate, ShmItem
from mmcached.compat.multimodal.items import MultiModalKwargsItem
from mmcached.compat.multimodal.lru_cache import CacheInfo
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import CacheMiss
from mmcached.wire.stats import ProcessorCacheStats

InT = TypeVar("InT")
OutT = TypeVar("OutT")

SenderInput = tuple[MultiModalKwargsItem, Sequence[ResolvedPromptUpdate]] | None
"""A processed item with its prompt updates, or None if the caller expects a cached item."""
SenderOutput = tuple[MultiModalKwargsItem | ShmItem | None, Sequence[ResolvedPromptUpdate]]
"""The data to send for the item (None if the receiver has it), and the prompt updates, which stay on P0."""
ReceiverInput = MultiModalKwargsItem | ShmItem | None


class BaseMultiModalCache(ABC, Generic[InT, OutT], Closeable):
    @abstractmethod
    def get_and_update_item(self, mm_item: InT, mm_hash: str) -> OutT:
        """Look the key up, store a new item, and return the output for the next stage.

        Raises:
            CacheMiss: There is neither an item nor an entry; nothing has changed.
        """

    def get_and_update(self, mm_items: Sequence[InT], mm_hashes: Sequence[str]) -> list[OutT]:
        """Call `get_and_update_item` for each item of a request, in prompt order.

        Raises:
            CacheMiss: Names all missing items.
            ValueError: The lists differ in length; nothing has changed.
        """
        if len(mm_items) != len(mm_hashes):
            raise ValueError(f"{len(mm_items)} items for {len(mm_hashes)} hashes")
        outputs: list[OutT] = []
        missing: list[str] = []
        for mm_item, mm_hash in zip(mm_items, mm_hashes, strict=True):
            try:
                outputs.append(self.get_and_update_item(mm_item, mm_hash))
            except CacheMiss as miss:
                missing += miss.mm_hashes
        if missing:
            raise CacheMiss(list(dict.fromkeys(missing)))
        return outputs

    @abstractmethod
    def clear_cache(self) -> None:
        """Remove every entry, and restart the counts of `make_stats`."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Raise InvariantError if the cache's state is inconsistent."""

    def close(self) -> None:
        """Release the cache's content; a second call changes nothing."""


class BaseMultiModalProcessorCache(BaseMultiModalCache[SenderInput, SenderOutput]):
    """The sender's side, P0: decides which items must be processed and sent."""

    @abstractmethod
    def is_cached_item(self, mm_hash: str) -> bool:
        """Return whether `get_and_update_item(None, mm_hash)` would hit; changes nothing."""

    def is_cached(self, mm_hashes: Sequence[str]) -> list[bool]:
        return [self.is_cached_item(mm_hash) for mm_hash in mm_hashes]

    @abstractmethod
    def touch_sender_cache_item(self, mm_hash: str) -> None:
        """Mark a present key as recently used; if others could evict it, keep it until `release_sender_touches`."""

    def release_sender_touches(self) -> None:
        """End every `touch_sender_cache_item`: the request has been sent, or will not be."""

    @abstractmethod
    def invalidate(self, mm_hash: str) -> None:
        """Remove one entry, because the receiver missed it; an absent one changes nothing."""

    @abstractmethod
    def make_stats(self, *, delta: bool = False) -> CacheInfo:
        """Return hits and queries since `clear_cache`, or with `delta` since the last call with `delta`."""

    @abstractmethod
    def stats(self) -> ProcessorCacheStats:
        """Return the counts since the start; `clear_cache` does not reset them."""


class BaseMultiModalReceiverCache(BaseMultiModalCache[ReceiverInput, MultiModalKwargsItem]):
    """The receiver's side, P1: turns the received data into items; received data replaces a cached item."""

    @abstractmethod
    def touch_receiver_cache_item(self, mm_hash: str, mm_item: ReceiverInput = None) -> None:
        """Mark a present key as recently used; an absent one changes nothing."""

    def get_and_update_features(self, mm_features: Sequence[MultiModalFeatureSpec]) -> list[MultiModalFeatureSpec]:
        """Replace the data of each feature by the item itself, in place, and return the features.

        Raises:
            CacheMiss: Names all missing items; the others are replaced.
        """
        for feature in mm_features:
            self.touch_receiver_cache_item(feature.cache_key, feature.data)
        missing: list[str] = []
        for feature in mm_features:
            try:
                feature.data = self.get_and_update_item(feature.data, feature.cache_key)
            except CacheMiss as miss:
                missing += miss.mm_hashes
        if missing:
            raise CacheMiss(list(dict.fromkeys(missing)))
        return list(mm_features)
