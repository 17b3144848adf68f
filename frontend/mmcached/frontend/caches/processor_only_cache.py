"""P0's processor cache in `processor_only` mode: whole items, kept on P0 alone. Saves the processing, not the sending.

    get_and_update_item(item or None, key)
      hit               -> (the kept item, its prompt updates)
      miss, item        -> (item, prompt updates)                  kept, unless it exceeds the capacity
      miss, None        -> CacheMiss

Whoever receives keeps nothing, so there may be any number of senders and receivers.

Source: vLLM's class of this name; there an oversized item was an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.cache import (
    MultiModalKwargsItem,
    MultiModalProcessorCacheItem,
    ResolvedPromptUpdate,
    SenderInput,
    SenderOutput,
)
from mmcached.frontend.caches.lru_processor_cache import LruProcessorCache


class MultiModalProcessorOnlyCache(LruProcessorCache[MultiModalProcessorCacheItem]):
    """Key -> item and prompt updates; at most `processor_cache_bytes` of items."""

    def get_and_update_item(
        self, mm_item: SenderInput, mm_hash: str
    ) -> tuple[MultiModalKwargsItem, Sequence[ResolvedPromptUpdate]]:
        """Return the item and its prompt updates, from here or as given.

        Raises:
            CacheMiss: neither cached nor given; nothing has changed.
        """
        kept = self._take_one(mm_item, mm_hash).value
        return kept.item, kept.prompt_updates

    def get_and_update(self, mm_items: Sequence[SenderInput], mm_hashes: Sequence[str]) -> list[SenderOutput]:
        taken = self._take(mm_items, mm_hashes)
        return [(one.value.item, one.value.prompt_updates) for one in taken]

    def _value_of(
        self, item: MultiModalKwargsItem, prompt_updates: Sequence[ResolvedPromptUpdate]
    ) -> MultiModalProcessorCacheItem:
        return MultiModalProcessorCacheItem(item, tuple(prompt_updates))
