"""The record and its windows."""

from __future__ import annotations

import pytest

from mmcached.cache import CacheInfo
from mmcached.compat.multimodal.query_counter import QueryCounter
from mmcached.wire.errors import InvariantError
from mmcached.wire.stats import ProcessorCacheStats


def test_windows() -> None:
    counter = QueryCounter()
    assert counter.make_stats() == counter.make_stats(delta=True) == CacheInfo(0, 0)
    counter.count(hits=2, items_processed=1, inline_items=3, inline_fallbacks=1)
    assert counter.make_stats(delta=True) == CacheInfo(2, 3)
    counter.count(items_processed=1)
    assert counter.make_stats() == CacheInfo(2, 4), "a look with delta does not move the other window"
    assert counter.make_stats(delta=True) == CacheInfo(0, 1)
    assert counter.make_stats(delta=True) == CacheInfo(0, 0)
    counter.clear()
    counter.count(hits=1)
    assert counter.make_stats() == counter.make_stats(delta=True) == CacheInfo(1, 1)
    assert counter.stats == ProcessorCacheStats(
        queries=5, hits=3, items_processed=2, inline_items=3, inline_fallbacks=1
    ), "nothing resets the record"
    counter.check_integrity()


def test_integrity_is_really_checked() -> None:
    counter = QueryCounter()
    counter._items_processed = -1
    with pytest.raises(InvariantError):
        counter.check_integrity()
