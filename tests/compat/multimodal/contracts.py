"""What all processor caches promise, whatever they keep where: those of P0, the senders, and those of P1, the
receivers. Each one runs it:

    @pytest.mark.parametrize("promise", PROCESSOR_CACHE_PROMISES)
    def test_promises(promise, cache):
        promise(cache)

A promise gets a fresh, open cache of 1 MiB: room for eight small items, or three large ones, and none for an oversized.
A receiver comes in a `FedReceiver`, which knows how its sender names an item. What a sender and a receiver promise
together: `pair_contracts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pytest

from mmcached.cache import (
    BaseMultiModalProcessorCache,
    BaseMultiModalReceiverCache,
    CacheInfo,
    MultiModalFeatureSpec,
    MultiModalKwargsItem,
    ResolvedPromptUpdate,
)
from mmcached.compat.multimodal.base import ReceiverInput
from mmcached.compat.multimodal.features import PlaceholderRange
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


Content = dict[str, tuple[str, tuple[int, ...], bytes]]


def content(item: object) -> Content:
    """Return what the model sees of an item of arrays, whichever library holds them: dtype, shape, bytes."""
    assert isinstance(item, MultiModalKwargsItem), f"{type(item).__name__} is no item"
    arrays = {name: np.asarray(element.data) for name, element in item.data.items()}
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


def missed_by(call: Callable[[], object]) -> list[str]:
    """Return what a call missed. Unlike `pytest.raises` it keeps no traceback, whose frames would keep items alive."""
    try:
        call()
    except CacheMiss as miss:
        return miss.mm_hashes
    pytest.fail("nothing was missed")


# ---- senders


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


def an_oversized_item_may_be_given_once_for_its_whole_request(cache: BaseMultiModalProcessorCache) -> None:
    big = an_item(1, OVERSIZED_BYTES)
    first, second = cache.get_and_update([big, None], ["big", "big"])
    assert first[0] is big[0]
    assert list(second[1]) == list(first[1]) == big[1]


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


def the_counters_of_three_photographs(cache: BaseMultiModalProcessorCache) -> None:
    """Two photographs, the first again; then a clear, and both anew: the window starts over, the counters go on."""
    steps = []
    for value in (0, 1, 0, None, 0, 1):
        if value is None:
            cache.clear_cache()
            continue
        cache.get_and_update_item(an_item(value), str(value))
        steps.append((cache.stats().queries, cache.stats().hits, cache.make_stats()))
    assert [step[:2] for step in steps] == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    assert [step[2] for step in steps[2:]] == [CacheInfo(1, 3), CacheInfo(0, 1), CacheInfo(0, 2)]


def clearing_leaves_the_service_s_counters(cache: BaseMultiModalProcessorCache) -> None:
    cache.get_and_update([an_item(0), None], ["0", "0"])
    before = cache.stats()
    assert (before.queries, before.hits, before.items_processed) == (2, 1, 1)
    cache.clear_cache()
    assert cache.stats() == before


PROCESSOR_CACHE_PROMISES: list[Promise] = [
    an_unknown_key_is_a_typed_miss,
    what_was_given_is_a_hit,
    looking_changes_nothing,
    a_batched_miss_names_all_that_are_missing,
    unequal_lengths_change_nothing,
    a_key_that_comes_twice_in_a_request_is_stored_once,
    a_request_gets_what_it_had_whatever_it_brings,
    an_oversized_item_is_served_and_not_kept,
    an_oversized_item_may_be_given_once_for_its_whole_request,
    an_invalidated_key_is_forgotten_alone,
    clearing_forgets_everything,
    the_counters_of_three_photographs,
    clearing_leaves_the_service_s_counters,
]


# ---- receivers


class FedReceiver(Protocol):
    """A receiver and how it is fed."""

    @property
    def cache(self) -> BaseMultiModalReceiverCache: ...

    def feed(self, request: Sequence[tuple[str, MultiModalKwargsItem | None]]) -> list[ReceiverInput]:
        """Return what a sender hands out: for a given item something that brings its data, whether or not its key came
        before; for None what names an item that was kept.
        """

    def check_rest(self) -> None:
        """Fail if something is held although no item lives."""


ReceiverPromise = Callable[[FedReceiver], None]


def item_of(value: int, nbytes: int = SMALL_BYTES) -> MultiModalKwargsItem:
    return an_item(value, nbytes)[0]


def a_feature(data: ReceiverInput, identifier: str, mm_hash: str | None = None) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(data, "image", identifier, PlaceholderRange(3, 7), mm_hash)


def ask(fed: FedReceiver, *request: tuple[str, MultiModalKwargsItem | None]) -> list[Content]:
    """Feed a request as features, and return what the model gets."""
    features = [a_feature(data, key) for data, (key, _) in zip(fed.feed(request), request, strict=True)]
    return [content(feature.data) for feature in fed.cache.get_and_update_features(features)]


def none_for_an_absent_item_is_a_typed_miss(fed: FedReceiver) -> None:
    cache = fed.cache
    assert missed_by(lambda: cache.get_and_update_item(None, "x")) == ["x"]
    assert missed_by(lambda: cache.get_and_update([None], ["x"])) == ["x"]
    assert missed_by(lambda: cache.get_and_update_features([a_feature(None, "x")])) == ["x"]
    assert ask(fed, ("x", item_of(1))) == [content(item_of(1))], "and can be sent again"


def what_came_is_served_and_served_again(fed: FedReceiver) -> None:
    assert ask(fed, ("a", item_of(1))) == [content(item_of(1))]
    for _ in range(3):
        assert ask(fed, ("a", None)) == [content(item_of(1))]


def all_misses_are_named_at_once_and_what_came_is_served_and_kept(fed: FedReceiver) -> None:
    """A and C come; B, D and E do not, B is asked for twice."""
    fed_items = fed.feed([("A", item_of(1)), ("C", item_of(2))])
    data = dict(zip("AC", fed_items, strict=True))
    features = [a_feature(data.get(key), key) for key in "ABCDEB"]
    assert missed_by(lambda: fed.cache.get_and_update_features(features)) == ["B", "D", "E"]
    assert [feature.data is None for feature in features] == [False, True, False, True, True, True]
    assert [content(features[index].data) for index in (0, 2)] == [content(item_of(1)), content(item_of(2))]
    assert ask(fed, ("C", None), ("A", None)) == [content(item_of(2)), content(item_of(1))]


def a_miss_in_a_list_gives_back_what_was_read(fed: FedReceiver) -> None:
    inputs = [None, *fed.feed([("a", item_of(1))]), None]
    assert missed_by(lambda: fed.cache.get_and_update(inputs, ["x", "a", "y"])) == ["x", "y"]
    inputs.clear()
    fed.check_rest()
    assert ask(fed, ("a", None)) == [content(item_of(1))]


def a_fresh_payload_wins(fed: FedReceiver) -> None:
    """Also with another size, and also if it is too large to be kept: then the old one must not come back."""
    ask(fed, ("X", item_of(1)))
    assert ask(fed, ("X", item_of(2, LARGE_BYTES))) == [content(item_of(2, LARGE_BYTES))]
    assert ask(fed, ("X", None)) == [content(item_of(2, LARGE_BYTES))]
    assert ask(fed, ("X", item_of(3, OVERSIZED_BYTES))) == [content(item_of(3, OVERSIZED_BYTES))]
    assert missed_by(lambda: ask(fed, ("X", None))) == ["X"]


def the_key_is_the_hash_or_else_the_identifier(fed: FedReceiver) -> None:
    """Adapters change the identifier, which is the encoder's; the processed item is the same."""
    for data, identifier, mm_hash in [
        (fed.feed([("h", item_of(1))])[0], "one:h", "h"),
        (fed.feed([("h", None)])[0], "two:h", "h"),
        (fed.feed([("h", None)])[0], "h", None),
    ]:
        (feature,) = fed.cache.get_and_update_features([a_feature(data, identifier, mm_hash)])
        assert content(feature.data) == content(item_of(1))
    assert missed_by(lambda: fed.cache.get_and_update_features([a_feature(None, "one:i", "i")])) == ["i"]


def features_keep_all_but_their_data(fed: FedReceiver) -> None:
    data = fed.feed([("a", item_of(1)), ("b", item_of(2, LARGE_BYTES))])
    features = [
        MultiModalFeatureSpec(data[0], "image", "l:a", PlaceholderRange(0, 2048), "a"),
        MultiModalFeatureSpec(data[1], "video", "b", PlaceholderRange(3000, 1)),
    ]
    updated = fed.cache.get_and_update_features(features)
    assert [each is feature for each, feature in zip(updated, features, strict=True)] == [True, True]
    assert [(each.modality, each.identifier, each.mm_position, each.mm_hash) for each in updated] == [
        ("image", "l:a", PlaceholderRange(0, 2048), "a"),
        ("video", "b", PlaceholderRange(3000, 1), None),
    ]


def a_request_s_own_items_do_not_evict_what_it_names(fed: FedReceiver) -> None:
    """Full of A, Y and Z, with A the oldest; B and C come with a request that ends with A."""
    large = {key: item_of(value, LARGE_BYTES) for value, key in enumerate("AYZBC")}
    ask(fed, *((key, large[key]) for key in "AYZ"))
    assert ask(fed, ("B", large["B"]), ("C", large["C"]), ("A", None)) == [content(large[key]) for key in "BCA"]


def an_oversized_item_passes_and_is_not_kept(fed: FedReceiver) -> None:
    big, small = item_of(1, OVERSIZED_BYTES), item_of(2)
    assert ask(fed, ("big", big), ("small", small)) == [content(big), content(small)]
    assert missed_by(lambda: ask(fed, ("big", None))) == ["big"]
    assert ask(fed, ("small", None)) == [content(small)]


def clearing_takes_nothing_from_the_model(fed: FedReceiver) -> None:
    (data,) = fed.feed([("a", item_of(1))])
    item = fed.cache.get_and_update_item(data, "a")
    fed.cache.clear_cache()
    fed.cache.clear_cache()
    assert content(item) == content(item_of(1))
    assert missed_by(lambda: fed.cache.get_and_update_item(None, "a")) == ["a"]
    assert ask(fed, ("a", item_of(2))) == [content(item_of(2))]


def lists_of_unequal_length_change_nothing(fed: FedReceiver) -> None:
    inputs = fed.feed([("a", item_of(1))])
    with pytest.raises(ValueError, match="1 items for 2 hashes"):
        fed.cache.get_and_update(inputs, ["a", "b"])
    assert list(map(content, fed.cache.get_and_update(inputs, ["a"]))) == [content(item_of(1))]


RECEIVER_CACHE_PROMISES: list[ReceiverPromise] = [
    none_for_an_absent_item_is_a_typed_miss,
    what_came_is_served_and_served_again,
    all_misses_are_named_at_once_and_what_came_is_served_and_kept,
    a_miss_in_a_list_gives_back_what_was_read,
    a_fresh_payload_wins,
    the_key_is_the_hash_or_else_the_identifier,
    features_keep_all_but_their_data,
    a_request_s_own_items_do_not_evict_what_it_names,
    an_oversized_item_passes_and_is_not_kept,
    clearing_takes_nothing_from_the_model,
    lists_of_unequal_length_change_nothing,
]
"""`check_rest` is called after each."""
