"""The shared encoder cache manager lets one encoding serve every request with the same item, until room is needed.

Source: vLLM 0.33's EncoderCacheManager; its public names mean the same here. Differences: entries are reserved first,
so a withdrawn step leaves no entry without content behind; `can_allocate` evicts nothing, so nothing evictable may be
referred to between it and `allocate`, which refuses what is there already, or does not fit; the tables are copies.
"""

from __future__ import annotations

from collections import OrderedDict

from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable


class SharedEncoderCacheManager(EncoderCacheTable):
    """Entries by `mm_hash`."""

    @property
    def cached(self) -> dict[str, set[int]]:
        """Requests that refer to an entry, by its key."""
        referring: dict[str, set[int]] = {entry.key: set() for entry in self._all_entries()}
        for request_id, held in self._held.items():
            for entry in held.values():
                referring[entry.key].add(request_id)
        return referring

    @property
    def num_embeds_by_hash(self) -> dict[str, int]:
        """Sizes of entries by key."""
        return {entry.key: entry.num_embeds for entry in self._all_entries()}

    @property
    def freeable(self) -> OrderedDict[str, int]:
        """Sizes of the entries without reference by key, the next to be evicted first."""
        return OrderedDict((entry.key, entry.num_embeds) for entry in self._evictable.values())

    @property
    def freed(self) -> list[str]:
        """Keys that have been dropped, and not been sent."""
        return self._step.pending()

    def get_freed_mm_hashes(self) -> list[str]:
        """Return and clear `freed`; vLLM's name for `take_freed`."""
        return self.take_freed()
