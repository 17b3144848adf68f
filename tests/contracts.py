"""What all processor caches of P0 promise, whatever they keep where. Each one runs it:

    @pytest.mark.parametrize("promise", PROCESSOR_CACHE_PROMISES)
    def test_promises(promise, cache):
        promise(cache)

A promise gets a fresh, open cache of 1 MiB: room for eight small items, or three large ones, and none for an oversized.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mmcached.cache import (
    BaseMultiModalProcessorCache,
    CacheInfo,
    MultiModalKwargsItem,
    ResolvedPromptUpdate,
)
from mmcached.wire.errors import CacheMiss

SMALL_BYTES = 1024
LARGE_BYTES = 300 << 10
OVERSIZED_BYTES = 4 << 20

Given = tuple[MultiModalKwargsItem, list[ResolvedPromptUpdate]]
Promise = Callable[[BaseMultiModalProcessorCache], None]


def an_item(value: int, nbytes: int = SMALL_BYTES) -> Given:
    """An item and its prompt updates, told apart by `value`."""
    item = MultiModalKwargsItem.from_record({"data": np.full(nbytes, value % 256, dtype=np.uint8)})
    return item, [ResolvedPromptUpdate("image", target=9, placeholder=9, length=value + 1)]


def an_unknown_key_is_a_typed_miss(cache: BaseMultiModalProcessorCache) -> None:
    assert not cache.is_cached_item("a")
    with pytest.raises(CacheMiss) as caught:
        cache.get_and_update_item(None, "a")
    assert caught.value.mm_hashes == ["a"]
    assert cache.make_stats() == CacheInfo(0, 0), "a miss that changes nothing counts nothing"


def what_was_given_is_a_hit(cache: BaseMultiModalProcessorCache) -> None:
    item, updates = an_item(1)
    _, returned = cache.get_and_update_item((item, updates), "a")
    assert list(returned) == updates
    assert cache.is_cached_item("a")
    _, kept = cache.get_and_update_item(None, "a")
    assert list(kept) == updates


def looking_changes_nothing(cache: BaseMultiModalProcessorCache) -> None:
    cache.get_and_update([an_item(1), an_item(2)], ["a", "b"])
    before = cache.make_stats()
    for _ in range(5):
        assert cache.is_cached(["a", "x", "b"]) == [True, False, True]
    assert cache.make_stats() == before


def touching_an_absent_key_changes_nothing(cache: BaseMultiModalProcessorCache) -> None:
    cache.touch_sender_cache_item("ghost")
    assert not cache.is_cached_item("ghost")
    cache.release_sender_touches()
    cache.get_and_update_item(an_item(1), "ghost")
    assert cache.is_cached_item("ghost")


def releasing_is_repeatable(cache: BaseMultiModalProcessorCache) -> None:
    cache.release_sender_touches()
    cache.get_and_update_item(an_item(1), "a")
    cache.touch_sender_cache_item("a")
    cache.touch_sender_cache_item("a")
    cache.release_sender_touches()
    cache.release_sender_touches()
    assert cache.is_cached_item("a")


def outputs_come_in_prompt_order(cache: BaseMultiModalProcessorCache) -> None:
    keys = ["c", "a", "d", "b"]
    given = [an_item(value) for value in range(4)]
    outputs = cache.get_and_update(given, keys)
    assert [list(updates) for _, updates in outputs] == [updates for _, updates in given]
    again = cache.get_and_update([None] * 4, keys[::-1])
    assert [list(updates) for _, updates in again] == [updates for _, updates in given[::-1]]


def a_batched_miss_names_all_that_are_missing(cache: BaseMultiModalProcessorCache) -> None:
    with pytest.raises(CacheMiss) as caught:
        cache.get_and_update([None, an_item(1), None, None], ["x", "a", "y", "x"])
    assert caught.value.mm_hashes == ["x", "y"]
    assert cache.is_cached(["x", "a", "y"]) == [False, True, False]


def unequal_lengths_change_nothing(cache: BaseMultiModalProcessorCache) -> None:
    with pytest.raises(ValueError, match="1 items for 2 hashes"):
        cache.get_and_update([an_item(1)], ["a", "b"])
    assert cache.is_cached(["a", "b"]) == [False, False]


def a_key_that_comes_twice_in_a_request_is_stored_once(cache: BaseMultiModalProcessorCache) -> None:
    cache.get_and_update([an_item(1), None, an_item(1)], ["a", "a", "a"])
    assert cache.make_stats() == CacheInfo(hits=2, total=3)


def a_request_gets_what_it_had_whatever_it_brings(cache: BaseMultiModalProcessorCache) -> None:
    """Three large items that come with a request leave no room for the one that it had: it is served all the same."""
    item, updates = an_item(0, LARGE_BYTES)
    cache.get_and_update_item((item, updates), "a")
    keys = ["b", "c", "d", "a"]
    for key in keys:
        cache.touch_sender_cache_item(key)
    outputs = cache.get_and_update([*(an_item(n, LARGE_BYTES) for n in (1, 2, 3)), None], keys)
    cache.release_sender_touches()
    assert [updates[0].length for _, updates in outputs] == [2, 3, 4, 1]


def an_oversized_item_is_served_and_not_kept(cache: BaseMultiModalProcessorCache) -> None:
    item, updates = an_item(1, OVERSIZED_BYTES)
    served, returned = cache.get_and_update_item((item, updates), "big")
    assert served is item
    assert list(returned) == updates
    assert not cache.is_cached_item("big")
    cache.get_and_update_item(an_item(2), "small")
    assert cache.is_cached_item("small")


def an_invalidated_key_is_forgotten_alone(cache: BaseMultiModalProcessorCache) -> None:
    cache.get_and_update([an_item(1), an_item(2)], ["a", "b"])
    cache.invalidate("a")
    cache.invalidate("a")
    cache.invalidate("never")
    assert cache.is_cached(["a", "b"]) == [False, True]
    _, updates = cache.get_and_update_item(an_item(3), "a")
    assert list(updates) == an_item(3)[1], "what comes anew takes its place"


def clearing_forgets_everything(cache: BaseMultiModalProcessorCache) -> None:
    cache.get_and_update([an_item(1), an_item(2), None], ["a", "b", "a"])
    cache.touch_sender_cache_item("a")
    cache.clear_cache()
    assert cache.is_cached(["a", "b"]) == [False, False]
    assert cache.make_stats() == cache.make_stats(delta=True) == CacheInfo(0, 0)
    with pytest.raises(CacheMiss):
        cache.get_and_update_item(None, "a")
    cache.get_and_update_item(an_item(3), "a")
    assert cache.is_cached_item("a")


def statistics_count_items(cache: BaseMultiModalProcessorCache) -> None:
    cache.get_and_update_item(an_item(0), "0")
    assert cache.make_stats(delta=True) == CacheInfo(0, 1)
    cache.get_and_update_item(an_item(1), "1")
    assert cache.make_stats(delta=True) == CacheInfo(0, 1)
    cache.get_and_update_item(None, "0")
    assert cache.make_stats() == CacheInfo(1, 3)
    assert cache.make_stats(delta=True) == CacheInfo(1, 1)
    assert cache.make_stats(delta=True) == CacheInfo(0, 0)


def clearing_leaves_the_service_s_counters(cache: BaseMultiModalProcessorCache) -> None:
    cache.get_and_update([an_item(0), None], ["0", "0"])
    before = cache.stats()
    assert (before.queries, before.hits, before.items_processed) == (2, 1, 1)
    cache.clear_cache()
    assert cache.stats() == before


def closing_is_repeatable(cache: BaseMultiModalProcessorCache) -> None:
    cache.get_and_update_item(an_item(1), "a")
    cache.close()
    cache.close()


PROCESSOR_CACHE_PROMISES: list[Promise] = [
    an_unknown_key_is_a_typed_miss,
    what_was_given_is_a_hit,
    looking_changes_nothing,
    touching_an_absent_key_changes_nothing,
    releasing_is_repeatable,
    outputs_come_in_prompt_order,
    a_batched_miss_names_all_that_are_missing,
    unequal_lengths_change_nothing,
    a_key_that_comes_twice_in_a_request_is_stored_once,
    a_request_gets_what_it_had_whatever_it_brings,
    an_oversized_item_is_served_and_not_kept,
    an_invalidated_key_is_forgotten_alone,
    clearing_forgets_everything,
    statistics_count_items,
    clearing_leaves_the_service_s_counters,
    closing_is_repeatable,
]
