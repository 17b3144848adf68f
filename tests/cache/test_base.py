"""What the abstract bases do by themselves: order, batched misses, the two passes of a receiver."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mmcached.cache import (
    BaseMultiModalReceiverCache,
    LRUCache,
    MultiModalFeatureSpec,
    MultiModalKwargsItem,
    PlaceholderRange,
    ReceiverInput,
    ShmItem,
)
from mmcached.wire.errors import CacheMiss
from tests.contracts import RECEIVER_CACHE_PROMISES, ReceiverPromise


def an_item(size: int, value: int = 0) -> MultiModalKwargsItem:
    return MultiModalKwargsItem.from_record({"data": np.full(size, value, dtype=np.uint8)})


class PlainReceiver(BaseMultiModalReceiverCache):
    """The smallest receiver that keeps items: an LRU cache of so many bytes."""

    def __init__(self, capacity: int = 10_000) -> None:
        self.cache: LRUCache[str, MultiModalKwargsItem] = LRUCache(capacity, lambda item: len(item["data"].data))  # type: ignore[arg-type]

    def get_and_update_item(self, mm_item: ReceiverInput, mm_hash: str) -> MultiModalKwargsItem:
        assert not isinstance(mm_item, ShmItem)
        if mm_item is not None:
            if not self.cache.put_if_fits(mm_hash, mm_item):
                self.cache.pop(mm_hash)  # it is not the newest any more
            return mm_item
        cached = self.cache.get(mm_hash)
        if cached is None:
            raise CacheMiss([mm_hash])
        return cached

    def touch_receiver_cache_item(self, mm_hash: str, mm_item: ReceiverInput = None) -> None:
        self.cache.touch(mm_hash)

    def clear_cache(self) -> None:
        self.cache.clear()

    def check_integrity(self) -> None:
        self.cache.check_integrity()


class FedPlainly:
    """Items travel as they are, and are named by None."""

    def __init__(self) -> None:
        self.cache = PlainReceiver(1 << 20)

    def feed(self, request: Sequence[tuple[str, MultiModalKwargsItem | None]]) -> list[ReceiverInput]:
        return [item for _, item in request]

    def check_rest(self) -> None:
        self.cache.check_integrity()


@pytest.mark.parametrize("promise", RECEIVER_CACHE_PROMISES, ids=lambda promise: promise.__name__)
def test_promises_of_receivers(promise: ReceiverPromise) -> None:
    """The bases give all of them to a receiver that stores, finds and touches."""
    fed = FedPlainly()
    promise(fed)
    fed.check_rest()


def feature(key: str, item: MultiModalKwargsItem | None, mm_hash: str | None = None) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(item, "image", key, PlaceholderRange(3, 7), mm_hash)


def test_outputs_come_in_prompt_order() -> None:
    with PlainReceiver() as receiver:
        first = receiver.get_and_update([an_item(1, 1), an_item(1, 2)], ["a", "b"])
        assert first == [an_item(1, 1), an_item(1, 2)]
        assert receiver.get_and_update([None, None], ["b", "a"]) == [an_item(1, 2), an_item(1, 1)]


def test_unequal_lengths_change_nothing() -> None:
    receiver = PlainReceiver()
    with pytest.raises(ValueError, match="1 items for 2 hashes"):
        receiver.get_and_update([an_item(1)], ["a", "b"])
    assert len(receiver.cache) == 0


def test_a_miss_names_all_that_are_missing_once() -> None:
    receiver = PlainReceiver()
    with pytest.raises(CacheMiss) as caught:
        receiver.get_and_update([None, an_item(1), None, None], ["x", "a", "y", "x"])
    assert caught.value.mm_hashes == ["x", "y"]
    assert "a" in receiver.cache, "what came with data is kept, for the resend"


def test_features_missing_are_reported_together_and_the_others_stored() -> None:
    receiver = PlainReceiver()
    items = {"A": an_item(1, 1), "B": None, "C": an_item(1, 2), "D": None, "E": None}
    features = [feature(key, item) for key, item in items.items()]
    with pytest.raises(CacheMiss) as caught:
        receiver.get_and_update_features(features)
    assert caught.value.mm_hashes == ["B", "D", "E"]
    assert list(receiver.cache.order) == ["A", "C"]
    assert [feature.data is None for feature in features] == [False, True, False, True, True]


def test_a_miss_is_typed_and_names_the_hash() -> None:
    with pytest.raises(CacheMiss) as caught:
        PlainReceiver().get_and_update_features([feature("X", None)])
    assert caught.value.mm_hashes == ["X"]
    assert caught.value.retryable


def test_a_fresh_payload_wins_over_a_cached_one() -> None:
    """Keeping the old one under a key that came again with data answered for the wrong image (vLLM #57833)."""
    receiver = PlainReceiver()
    small, large = an_item(64, 1), an_item(2048, 2)
    receiver.get_and_update_features([feature("X", small)])
    (updated,) = receiver.get_and_update_features([feature("X", large)])
    assert updated.data is large
    assert updated.mm_position == PlaceholderRange(3, 7)
    (later,) = receiver.get_and_update_features([feature("X", None)])
    assert later.data is large


def test_the_key_is_the_hash_not_the_adapter_s_identifier() -> None:
    receiver = PlainReceiver()
    item = an_item(5)
    receiver.get_and_update_features([feature("one:h", item, "h")])
    (other,) = receiver.get_and_update_features([feature("two:h", None, "h")])
    assert other.data is item
    assert list(receiver.cache.order) == ["h"]


def test_the_first_pass_touches_every_key() -> None:
    """6 bytes: A, B, C of 2; then D, E of 1 with A and C cached. Without the first pass D would evict A."""
    receiver = PlainReceiver(6)
    receiver.get_and_update_features([feature(key, an_item(2)) for key in "ABC"])
    request = [feature("D", an_item(1)), feature("E", an_item(1)), feature("A", None), feature("C", None)]
    receiver.get_and_update_features(request)
    assert list(receiver.cache.order) == ["D", "E", "A", "C"]


def test_an_oversized_item_is_served_and_not_kept() -> None:
    receiver = PlainReceiver(1024)
    big = an_item(4096)
    (updated,) = receiver.get_and_update_features([feature("big", big)])
    assert updated.data is big
    assert "big" not in receiver.cache
    receiver.get_and_update_features([feature("small", an_item(64))])
    assert "small" in receiver.cache
