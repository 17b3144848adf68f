"""Counts what a processor cache of P0 was asked: one record that only rises, and the windows of it for `make_stats`.

    |---- clear ---------- delta -------- now        from the start           stats
             |<---------------------------->|        since `clear`            make_stats()
                             |<------------>|        since the last such      make_stats(delta=True)

Knows nothing of caches.
"""

from __future__ import annotations

from mmcached.cache.lru import CacheInfo
from mmcached.wire.errors import InvariantError
from mmcached.wire.stats import ProcessorCacheStats


class QueryCounter:
    """Of one cache; see the drawing above."""

    def __init__(self) -> None:
        self._stats = ProcessorCacheStats()
        self._at_clear = self._at_delta = CacheInfo(0, 0)

    @property
    def stats(self) -> ProcessorCacheStats:
        """What was counted since the start; nothing resets it."""
        return self._stats

    def count(
        self, *, hits: int = 0, items_processed: int = 0, inline_items: int = 0, inline_fallbacks: int = 0
    ) -> None:
        """Count queries: `hits`, which needed no processing, and `items_processed`; and what became of the items."""
        before = self._stats
        self._stats = ProcessorCacheStats(
            queries=before.queries + hits + items_processed,
            hits=before.hits + hits,
            items_processed=before.items_processed + items_processed,
            inline_items=before.inline_items + inline_items,
            inline_fallbacks=before.inline_fallbacks + inline_fallbacks,
        )

    def make_stats(self, *, delta: bool = False) -> CacheInfo:
        """Return hits and queries since `clear`, or with `delta` since the last call with `delta`."""
        now = CacheInfo(self._stats.hits, self._stats.queries)
        if not delta:
            return now - self._at_clear
        difference = now - self._at_delta
        self._at_delta = now
        return difference

    def clear(self) -> None:
        """Start `make_stats` anew; `stats` goes on."""
        self._at_clear = self._at_delta = CacheInfo(self._stats.hits, self._stats.queries)

    def check_integrity(self) -> None:
        if not 0 <= self._stats.hits <= self._stats.queries:
            raise InvariantError(f"processor cache: {self._stats.hits} hits of {self._stats.queries} queries")
