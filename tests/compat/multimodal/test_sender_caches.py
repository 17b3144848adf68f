"""The two caches that keep items or their sizes: what every processor cache promises, and what each does alone."""

from __future__ import annotations

import gc
import weakref

import pytest

from mmcached.frontend import MultiModalProcessorOnlyCache, MultiModalProcessorSenderCache
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import CacheMiss
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


def test_a_hit_is_the_item_itself() -> None:
    cache = keeping()
    item, updates = an_item(1)
    assert cache.get_and_update_item((item, updates), "a")[0] is item
    kept, kept_updates = cache.get_and_update_item(None, "a")
    assert kept is item
    assert list(kept_updates) == updates
    assert cache.get_and_update_item(an_item(2), "a")[0] is item, "a key says its content"


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
