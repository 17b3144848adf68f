"""Shared encoder cache manager: one encoding serves every request with the same item, until it is evicted.

Source: vLLM 0.33's EncoderCacheManager; its public names mean the same here. Differences: entries are reserved first,
so a withdrawn step leaves no entry without content; `can_allocate` evicts nothing, so no evictable entry may be
referred to between it and `allocate`, which refuses an item that has an entry or does not fit; the tables are copies.
"""

from __future__ import annotations

from collections import OrderedDict

from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable


class SharedEncoderCacheManager(EncoderCacheTable):
    """Encoder cache manager with entries by `mm_hash`."""

    @property
    def cached(self) -> dict[str, set[int]]:
        """Ids of the requests that refer to an entry, by its key."""
        referring: dict[str, set[int]] = {entry.key: set() for entry in self._all_entries()}
        for request_id, held in self._held.items():
            for entry in held.values():
                referring[entry.key].add(request_id)
        return referring

    @property
    def num_embeds_by_hash(self) -> dict[str, int]:
        return {entry.key: entry.num_embeds for entry in self._all_entries()}

    @property
    def freeable(self) -> OrderedDict[str, int]:
        """Sizes of the entries without reference by key, in order of eviction."""
        return OrderedDict((entry.key, entry.num_embeds) for entry in self._evictable.values())

    @property
    def freed(self) -> list[str]:
        """Keys of dropped entries that were not sent to the workers yet."""
        return self._step.pending()

    def get_freed_mm_hashes(self) -> list[str]:
        """Return and clear `freed`; vLLM's name for `take_freed`."""
        return self.take_freed()
