"""The two caches that keep items or their sizes: what every processor cache promises, and what each does alone."""

from __future__ import annotations

import gc
import weakref

import pytest

from mmcached.frontend import MultiModalProcessorOnlyCache, MultiModalProcessorSenderCache
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import CacheMiss
from mmcached.wire.stats import ProcessorCacheStats
from tests.compat.multimodal.contracts import PROCESSOR_CACHE_PROMISES, Promise, an_item

MIB = 1 << 20
Cache = MultiModalProcessorOnlyCache | MultiModalProcessorSenderCache


def config(capacity: int) -> ServiceConfig:
    return ServiceConfig(mm_processor_cache_gb=capacity / GIB)


def keeping(capacity: int = MIB) -> MultiModalProcessorOnlyCache:
    return MultiModalProcessorOnlyCache(config(capacity))


def sending(capacity: int = MIB) -> MultiModalProcessorSenderCache:
    return MultiModalProcessorSenderCache(config(capacity))


@pytest.mark.parametrize("kind", [MultiModalProcessorOnlyCache, MultiModalProcessorSenderCache])
@pytest.mark.parametrize("promise", PROCESSOR_CACHE_PROMISES, ids=lambda promise: promise.__name__)
def test_promises(promise: Promise, kind: type[Cache]) -> None:
    with kind(config(MIB)) as cache:
        promise(cache)
        cache.check_integrity()


def test_a_hit_is_the_item_itself() -> None:
    cache = keeping()
    item, updates = an_item(1)
    assert cache.get_and_update_item((item, updates), "a")[0] is item
    kept, kept_updates = cache.get_and_update_item(None, "a")
    assert kept is item
    assert list(kept_updates) == updates
    assert cache.get_and_update_item(an_item(2), "a")[0] is item, "a key says its content"


def test_an_oversized_item_is_served_to_its_whole_request() -> None:
    """1 KiB of room, an item of 4 KiB, then one of 64 bytes (vLLM #52835)."""
    cache = keeping(1024)
    big = an_item(1, 4096)
    for item, _ in cache.get_and_update([big, None], ["big", "big"]):
        assert item is big[0]
    assert not cache.is_cached_item("big")
    cache.get_and_update_item(an_item(2, 64), "small")
    assert cache.is_cached_item("small")
    assert cache.stats() == ProcessorCacheStats(
        queries=3, hits=1, items_processed=2, inline_items=2, inline_fallbacks=1
    )


def test_touched_items_stay_while_their_request_brings_others() -> None:
    """6 bytes: A, B, C of 2; then D, E of 1 with A and C cached. D pushes out B."""
    cache = keeping(6)
    cache.get_and_update([an_item(n, 2) for n in range(3)], list("ABC"))
    assert [key for key, _ in cache.contents()] == ["A", "B", "C"]
    request = list("DEAC")
    assert cache.is_cached(request) == [False, False, True, True]
    for key in request:
        cache.touch_sender_cache_item(key)
    for mm_item, key in zip([an_item(4, 1), an_item(5, 1), None, None], request, strict=True):
        cache.get_and_update_item(mm_item, key)
    assert [key for key, _ in cache.contents()] == request


def test_updates_are_owned() -> None:
    """The list of a caller who goes on with it does not change what is cached."""
    for cache in (keeping(), sending()):
        item, updates = an_item(1)
        cache.get_and_update_item((item, updates), "a")
        updates.clear()
        assert len(cache.get_and_update_item(None, "a")[1]) == 1


def test_a_closed_cache_holds_nothing() -> None:
    cache = keeping()
    cache.get_and_update_item(an_item(1), "a")
    cache.close()
    assert cache.contents() == []
    with pytest.raises(CacheMiss):
        cache.get_and_update_item(None, "a")


def test_a_sent_item_goes_once() -> None:
    cache = sending()
    item, updates = an_item(1)
    assert cache.get_and_update_item((item, updates), "a") == (item, tuple(updates))
    assert cache.get_and_update_item((item, updates), "a") == (None, tuple(updates))
    assert cache.get_and_update_item(None, "a") == (None, tuple(updates))
    big = an_item(2, 2 * MIB)
    outputs = cache.get_and_update([None, big, None, an_item(3)], ["a", "big", "big", "c"])
    assert [output is None for output, _ in outputs] == [True, False, True, False]
    assert cache.contents() == [("a", 1024), ("c", 1024)]


def test_no_sent_item_is_kept() -> None:
    cache = sending()
    item, updates = an_item(1)
    cache.get_and_update_item((item, updates), "a")
    watched = weakref.ref(item)
    del item
    gc.collect()
    assert watched() is None
