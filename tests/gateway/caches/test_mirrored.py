"""P0's mirror by itself."""

from __future__ import annotations

import pytest

from mmcached.cache.request_lru import RequestLRU
from mmcached.gateway.caches.item_cache import OutgoingItem
from mmcached.gateway.caches.mirrored import MirroredItemCache


def sent(cache: MirroredItemCache, *sizes: tuple[str, int]) -> None:
    """A message with items of these sizes has been accepted."""
    cache.sent([OutgoingItem(key, nbytes, 1, None) for key, nbytes in sizes])


def test_looking_moves_nothing() -> None:
    cache = MirroredItemCache(RequestLRU(10))
    sent(cache, ("a", 1), ("b", 2))
    before = (cache.contents(), cache.next_mirror_seq, cache.stats())
    assert cache.missing(["b", "x", "a", "x"]) == ["x"]
    assert cache.resolve(["b", "a"], {}) == [OutgoingItem("b", 2, 1, None), OutgoingItem("a", 1, 1, None)]
    assert cache.resolve([], {}) == []
    with pytest.raises(KeyError):
        cache.resolve(["a", "x"], {})
    assert (cache.contents(), cache.next_mirror_seq, cache.stats()) == before


def test_mirror_moves_like_the_engine() -> None:
    cache = MirroredItemCache(RequestLRU(6))
    sent(cache, *((key, 2) for key in "ABC"))
    sent(cache, ("D", 1), ("E", 1), ("A", 2), ("C", 2))
    assert cache.contents() == [("D", 1), ("E", 1), ("A", 2), ("C", 2)]
    sent(cache, ("big", 7), ("big", 7), ("D", 1))
    assert cache.contents() == [("E", 1), ("A", 2), ("C", 2), ("D", 1)]


def test_each_message_has_the_next_number_and_clearing_leaves_one_out() -> None:
    cache = MirroredItemCache(RequestLRU(10))
    assert cache.next_mirror_seq == 1
    sent(cache, ("a", 1))
    sent(cache)
    assert cache.next_mirror_seq == 3
    cache.clear()
    assert (cache.contents(), cache.next_mirror_seq, cache.missing("a")) == ([], 4, ["a"])


def test_a_hit_is_what_was_not_processed() -> None:
    cache = MirroredItemCache(RequestLRU(10))
    sent(cache, ("a", 1), ("a", 1), ("big", 11), ("big", 11))
    sent(cache, ("a", 1), ("b", 1), ("big", 11))
    stats = cache.stats()
    assert (stats.queries, stats.hits, stats.inline_fallbacks) == (5, 1, 2)


def test_a_miss_starts_the_mirror_anew_and_is_counted() -> None:
    cache = MirroredItemCache(RequestLRU(10))
    sent(cache, ("a", 1), ("b", 1))
    stats = cache.stats()
    cache.missed([])
    assert cache.contents() == [("a", 1), ("b", 1)]
    cache.missed(["a", "gone meanwhile"])
    assert (cache.num_desyncs, cache.contents(), cache.next_mirror_seq) == (2, [], 3)
    assert cache.stats() == stats
    cache.clear()
    assert cache.num_desyncs == 2, "a counter only rises"
