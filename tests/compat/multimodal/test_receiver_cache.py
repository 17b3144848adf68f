"""P1's end of the mirrored cache, with items; `test_pairs` has it face the sender."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mmcached.cache import MultiModalFeatureSpec, MultiModalKwargsItem
from mmcached.compat.multimodal.base import ReceiverInput
from mmcached.compat.multimodal.features import PlaceholderRange, ShmItem
from mmcached.engine import MultiModalReceiverCache
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import LocalProtocolError
from mmcached.wire.handle import Handle
from tests.compat.multimodal.contracts import RECEIVER_CACHE_PROMISES, ReceiverPromise


def a_cache(capacity: int = 1000) -> MultiModalReceiverCache:
    return MultiModalReceiverCache(ServiceConfig(mm_processor_cache_gb=capacity / GIB, mm_processor_cache_type="lru"))


class FedByMirror:
    """Items travel as they are, and are named by None."""

    def __init__(self) -> None:
        self.cache = a_cache(1 << 20)

    def feed(self, request: Sequence[tuple[str, MultiModalKwargsItem | None]]) -> list[ReceiverInput]:
        return [item for _, item in request]

    def check_rest(self) -> None:
        assert sum(size for _, size in self.cache.contents()) <= 1 << 20


@pytest.mark.parametrize("promise", RECEIVER_CACHE_PROMISES, ids=lambda promise: promise.__name__)
def test_promises(promise: ReceiverPromise) -> None:
    fed = FedByMirror()
    promise(fed)
    fed.check_rest()


def an_item(nbytes: int, value: int = 0) -> MultiModalKwargsItem:
    return MultiModalKwargsItem.from_record({"data": np.full(nbytes, value, dtype=np.uint8)})


def feature(key: str, item: MultiModalKwargsItem | None) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(item, "image", key, PlaceholderRange(0, 2048))


def test_what_is_served_is_the_item_itself() -> None:
    cache = a_cache(8192)
    small, large, oversized = an_item(64, 1), an_item(2048, 2), an_item(10_000, 3)
    assert cache.get_and_update_item(small, "X") is small
    assert cache.get_and_update_item(None, "X") is small
    (updated,) = cache.get_and_update_features([feature("X", large)])
    assert updated.data is large
    assert cache.get_and_update([None, oversized], ["X", "Y"]) == [large, oversized]
    assert cache.contents() == [("X", 2048)]


def test_touched_items_stay_while_their_request_brings_others() -> None:
    cache = a_cache(6)
    cache.get_and_update([an_item(2) for _ in "ABC"], list("ABC"))
    request = [feature("D", an_item(1)), feature("E", an_item(1)), feature("A", None), feature("C", None)]
    cache.get_and_update_features(request)
    assert [key for key, _ in cache.contents()] == ["D", "E", "A", "C"]
    cache.touch_receiver_cache_item("E")
    cache.touch_receiver_cache_item("ghost", an_item(1))
    assert [key for key, _ in cache.contents()] == ["D", "A", "C", "E"]


def test_an_item_in_a_ring_is_for_another_receiver() -> None:
    with pytest.raises(LocalProtocolError):
        a_cache().get_and_update_item(ShmItem(Handle("0" * 32, 1, 0, 1, 0, 64)), "in a ring")


def test_a_closed_cache_holds_nothing() -> None:
    cache = a_cache()
    cache.get_and_update_item(an_item(1), "a")
    cache.close()
    assert cache.contents() == []
