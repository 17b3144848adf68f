"""P0's mirror by itself; `tests/pairs/test_mirror.py` has it face the receiver."""

from __future__ import annotations

import gc
import weakref

import pytest

from mmcached.cache import ResolvedPromptUpdate
from mmcached.frontend.caches.lru_sender_cache import MirroredItem, MultiModalProcessorSenderCache
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import CacheMiss, InvariantError
from mmcached.wire.stats import ProcessorCacheStats
from tests.contracts import PROCESSOR_CACHE_PROMISES, Promise, an_item

MIB = 1 << 20


def a_cache(capacity: int = MIB) -> MultiModalProcessorSenderCache:
    return MultiModalProcessorSenderCache(
        ServiceConfig(mm_processor_cache_gb=capacity / GIB, mm_processor_cache_type="lru")
    )


def mirrored(key: str, nbytes: int = 1, length: int = 1) -> MirroredItem:
    return MirroredItem(key, nbytes, (ResolvedPromptUpdate("image", target=9, placeholder=9, length=length),))


@pytest.mark.parametrize("promise", PROCESSOR_CACHE_PROMISES, ids=lambda promise: promise.__name__)
def test_promises(promise: Promise) -> None:
    with a_cache() as cache:
        promise(cache)
        cache.check_integrity()


# ---- plan, send, apply


def test_planning_moves_nothing() -> None:
    cache = a_cache(10)
    cache.apply([mirrored("a"), mirrored("b")])
    before = (cache.contents(), cache.next_mirror_seq, cache.stats(), cache.make_stats())
    assert cache.plan(["b", "x", "a", "x", "x"]) == [True, False, True, True, True]
    assert cache.plan([]) == []
    assert cache.metadata("a") == mirrored("a")
    with pytest.raises(CacheMiss) as caught:
        cache.metadata("x")
    assert caught.value.mm_hashes == ["x"]
    assert (cache.contents(), cache.next_mirror_seq, cache.stats(), cache.make_stats()) == before


def test_applying_moves_like_the_receiver() -> None:
    cache = a_cache(6)
    cache.apply([mirrored(key, 2) for key in "ABC"])
    cache.apply([mirrored("D"), mirrored("E"), mirrored("A", 2), mirrored("C", 2)])
    assert cache.contents() == [("D", 1), ("E", 1), ("A", 2), ("C", 2)]
    cache.apply([mirrored("big", 7), mirrored("big", 7), mirrored("D")])
    assert cache.contents() == [("E", 1), ("A", 2), ("C", 2), ("D", 1)]


def test_each_message_has_the_next_number() -> None:
    cache = a_cache()
    assert cache.next_mirror_seq == 1
    cache.apply([mirrored("a")])
    cache.apply([])
    assert cache.next_mirror_seq == 3


def test_a_hit_is_what_was_not_processed() -> None:
    cache = a_cache(10)
    cache.apply([mirrored("a"), mirrored("a"), mirrored("big", 11), mirrored("big", 11)])
    cache.apply([mirrored("a"), mirrored("b"), mirrored("big", 11)])
    assert cache.stats() == ProcessorCacheStats(
        queries=7, hits=3, items_processed=4, inline_items=4, inline_fallbacks=2
    )


# ---- starting anew


def test_clearing_leaves_out_a_number() -> None:
    cache = a_cache()
    cache.apply([mirrored("a")])
    cache.clear_cache()
    assert (cache.contents(), cache.next_mirror_seq) == ([], 3)
    assert cache.plan(["a"]) == [False]


def test_a_miss_starts_the_mirror_anew_and_is_counted() -> None:
    cache = a_cache()
    cache.apply([mirrored("a"), mirrored("b")])
    stats = cache.make_stats()
    assert cache.note_misses([]) == 0
    assert cache.contents() == [("a", 1), ("b", 1)]
    assert cache.note_misses(["a", "gone meanwhile"]) == 2
    assert (cache.num_desyncs, cache.contents(), cache.next_mirror_seq) == (2, [], 3)
    assert cache.make_stats() == stats
    cache.clear_cache()
    assert cache.num_desyncs == 2, "a counter only rises"


# ---- the library's face


def test_the_item_goes_once() -> None:
    cache = a_cache()
    item, updates = an_item(1)
    assert cache.get_and_update_item((item, updates), "a") == (item, tuple(updates))
    assert cache.get_and_update_item((item, updates), "a") == (None, tuple(updates))
    assert cache.get_and_update_item(None, "a") == (None, tuple(updates))
    big = an_item(2, 2 * MIB)
    outputs = cache.get_and_update([None, big, None, an_item(3)], ["a", "big", "big", "c"])
    assert [output is None for output, _ in outputs] == [True, False, True, False]
    assert cache.contents() == [("a", 1024), ("c", 1024)]


def test_no_item_is_kept() -> None:
    cache = a_cache()
    item, updates = an_item(1)
    cache.get_and_update_item((item, updates), "a")
    watched = weakref.ref(item)
    del item
    gc.collect()
    assert watched() is None


def test_integrity_is_really_checked() -> None:
    cache = a_cache()
    cache._counter._items_processed = -1
    with pytest.raises(InvariantError):
        cache.check_integrity()
