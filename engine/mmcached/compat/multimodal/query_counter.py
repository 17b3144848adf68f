"""Counts the queries of a processor cache of P0: a cumulative record, and differences of it.

|---- clear ---------- delta -------- now        from the start           stats
         |<---------------------------->|        since `clear`            make_stats()
                         |<------------>|        since the last such      make_stats(delta=True)
"""

from __future__ import annotations

from mmcached.compat.multimodal.lru_cache import CacheInfo
from mmcached.wire.errors import InvariantError
from mmcached.wire.stats import ProcessorCacheStats


class QueryCounter:
    def __init__(self) -> None:
        self._hits = self._items_processed = self._inline_items = self._inline_fallbacks = 0
        self._at_clear = self._at_delta = CacheInfo(0, 0)

    @property
    def stats(self) -> ProcessorCacheStats:
        return ProcessorCacheStats(
            queries=self._hits + self._items_processed,
            hits=self._hits,
            items_processed=self._items_processed,
            inline_items=self._inline_items,
            inline_fallbacks=self._inline_fallbacks,
        )

    def count(
        self, *, hits: int = 0, items_processed: int = 0, inline_items: int = 0, inline_fallbacks: int = 0
    ) -> None:
        """Count queries, as `hits` without processing and as `items_processed`, and how their items were sent."""
        self._hits += hits
        self._items_processed += items_processed
        self._inline_items += inline_items
        self._inline_fallbacks += inline_fallbacks

    def count_hit(self) -> None:
        """Count one hit, the most frequent case."""
        self._hits += 1

    def make_stats(self, *, delta: bool = False) -> CacheInfo:
        now = self._info()
        if not delta:
            return now - self._at_clear
        difference = now - self._at_delta
        self._at_delta = now
        return difference

    def clear(self) -> None:
        """Restart the counts of `make_stats`; `stats` continues."""
        self._at_clear = self._at_delta = self._info()

    def check_integrity(self) -> None:
        info = self._info()
        if not 0 <= info.hits <= info.total:
            raise InvariantError(f"processor cache: {info.hits} hits of {info.total} queries")

    def _info(self) -> CacheInfo:
        return CacheInfo(self._hits, self._hits + self._items_processed)
