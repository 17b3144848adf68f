"""The abstract base of receivers gives its promises to one that only stores, finds and touches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mmcached.cache import BaseMultiModalReceiverCache, LRUCache, MultiModalFeatureSpec, MultiModalKwargsItem
from mmcached.compat.multimodal.base import ReceiverInput
from mmcached.compat.multimodal.features import PlaceholderRange, ShmItem
from mmcached.wire.errors import CacheMiss
from tests.compat.multimodal.contracts import RECEIVER_CACHE_PROMISES, ReceiverPromise


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


def feature(key: str, item: MultiModalKwargsItem | None) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(item, "image", key, PlaceholderRange(3, 7))


def test_the_first_pass_touches_every_key() -> None:
    """6 bytes: A, B, C of 2; then D, E of 1 with A and C cached. Without the first pass D would evict A."""
    receiver = PlainReceiver(6)
    receiver.get_and_update_features([feature(key, an_item(2)) for key in "ABC"])
    request = [feature("D", an_item(1)), feature("E", an_item(1)), feature("A", None), feature("C", None)]
    receiver.get_and_update_features(request)
    assert list(receiver.cache.order) == ["D", "E", "A", "C"]
