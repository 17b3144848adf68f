"""P1's end by itself; `tests/pairs/test_mirror.py` has it face the sender."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mmcached.cache import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange, ReceiverInput, ShmItem
from mmcached.engine.server.receiver_cache import (
    MultiModalReceiverCache,
    ReceivedItem,
    ReceiverCacheStats,
    engine_receiver_cache_from_config,
)
from mmcached.shm.store import codec
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import CacheMiss, InvariantError, LocalProtocolError, RemoteProtocolError
from mmcached.wire.handle import Handle
from tests.contracts import RECEIVER_CACHE_PROMISES, ReceiverPromise


def a_cache(capacity: int = 1000) -> MultiModalReceiverCache:
    return MultiModalReceiverCache(ServiceConfig(mm_processor_cache_gb=capacity / GIB, mm_processor_cache_type="lru"))


def came(key: str, nbytes: int = 100, data: bytes | None = None) -> ReceivedItem:
    return ReceivedItem(key, nbytes, [b"header", data or key.encode()])


def named(key: str, nbytes: int = 100) -> ReceivedItem:
    return ReceivedItem(key, nbytes, None)


class FedByMirror:
    """Items travel as they are, and are named by None."""

    def __init__(self) -> None:
        self.cache = a_cache(1 << 20)

    def feed(self, request: Sequence[tuple[str, MultiModalKwargsItem | None]]) -> list[ReceiverInput]:
        return [item for _, item in request]

    def check_rest(self) -> None:
        self.cache.check_integrity()


@pytest.mark.parametrize("promise", RECEIVER_CACHE_PROMISES, ids=lambda promise: promise.__name__)
def test_promises(promise: ReceiverPromise) -> None:
    fed = FedByMirror()
    promise(fed)
    fed.check_rest()


# ---- the service's face


def test_frames_come_once() -> None:
    with a_cache() as cache:
        frames = (b"header", b"a")
        assert cache.ingest(1, [came("a"), named("a")]) == [frames, frames]
        assert cache.ingest(2, [named("a")]) == [frames]
        assert cache.stats() == ReceiverCacheStats(queries=3, hits=2, misses=0, num_gaps=0, num_entries=1, nbytes=100)
        cache.check_integrity()


def test_frames_of_a_real_item_are_within_the_size_that_travels() -> None:
    encoded = codec.encode({"pixels": np.arange(100, dtype=np.uint8), "grid": np.array([2, 3])})
    cache = a_cache(10_000)
    (frames,) = cache.ingest(1, [ReceivedItem("a", encoded.nbytes, encoded.frames())])
    record = codec.decode_frames(frames, tensors="numpy")
    assert record["pixels"].tolist() == list(range(100))
    assert cache.contents() == [("a", encoded.nbytes)]


def test_all_misses_are_named_at_once_and_the_rest_is_kept() -> None:
    """A and C come, B, D and E do not: before or after a missing one, what came is there for the resend."""
    cache = a_cache()
    with pytest.raises(CacheMiss) as caught:
        cache.ingest(1, [came("A"), named("B"), came("C"), named("D"), named("E"), named("B")])
    assert caught.value.mm_hashes == ["B", "D", "E"]
    assert cache.contents() == [("A", 100), ("C", 100)]
    resent = [named("A"), came("B"), named("C"), came("D"), came("E"), named("B")]
    assert [frames[1] for frames in cache.ingest(2, resent)] == [b"A", b"B", b"C", b"D", b"E", b"B"]
    assert cache.stats().misses == 4


def test_a_fresh_payload_wins() -> None:
    cache = a_cache()
    cache.ingest(1, [came("a", 10, b"old")])
    assert cache.ingest(2, [came("a", 600, b"new")])[0][1] == b"new"
    assert cache.ingest(3, [named("a", 600)])[0][1] == b"new"
    assert cache.ingest(4, [came("a", 5000, b"too large to keep")])[0][1] == b"too large to keep"
    with pytest.raises(CacheMiss):
        cache.ingest(5, [named("a", 600)])


def test_a_size_that_is_not_the_one_here_is_a_miss() -> None:
    """The ends have drifted: to serve it would let them drift on."""
    cache = a_cache()
    cache.ingest(1, [came("a", 100)])
    with pytest.raises(CacheMiss) as caught:
        cache.ingest(2, [named("a", 101)])
    assert caught.value.mm_hashes == ["a"]


def test_a_number_that_does_not_follow_clears_first() -> None:
    for wrong in (1, 2, 4, 99):
        cache = a_cache()
        cache.ingest(1, [came("a")])
        cache.ingest(2, [came("b")])
        with pytest.raises(CacheMiss) as caught:
            cache.ingest(wrong, [came("c"), named("a"), named("b")])
        assert caught.value.mm_hashes == ["a", "b"]
        assert cache.contents() == [("c", 100)], "what came with this very message stays"
        assert cache.stats().num_gaps == 1
        assert cache.ingest(wrong + 1, [named("c")]) == [(b"header", b"c")]


def test_after_clearing_any_number_may_come() -> None:
    cache = a_cache()
    cache.ingest(17, [came("a")])
    cache.clear_cache()
    assert cache.contents() == []
    cache.ingest(5, [came("b")])
    assert (cache.stats().num_gaps, cache.contents()) == (0, [("b", 100)])


@pytest.mark.parametrize(
    ("seq", "item", "field"),
    [(2, ReceivedItem("b", 5, [b"123", b"456"]), "features[1].nbytes"), (0, came("b"), "mirror_seq")],
)
def test_what_contradicts_itself_changes_nothing(seq: int, item: ReceivedItem, field: str) -> None:
    cache = a_cache()
    cache.ingest(1, [came("a")])
    before = cache.stats()
    with pytest.raises(RemoteProtocolError) as caught:
        cache.ingest(seq, [came("c"), item])
    assert caught.value.details["field"] == field
    assert (cache.stats(), cache.contents()) == (before, [("a", 100)])
    assert cache.ingest(2, [named("a")])


def test_a_large_memoryview_counts_its_bytes() -> None:
    view = memoryview(bytes(800)).cast("q")  # len() says 100
    with pytest.raises(RemoteProtocolError):
        a_cache().ingest(1, [ReceivedItem("a", 100, [view])])


# ---- the library's face


def an_item(nbytes: int, value: int = 0) -> MultiModalKwargsItem:
    return MultiModalKwargsItem.from_record({"data": np.full(nbytes, value, dtype=np.uint8)})


def feature(key: str, item: MultiModalKwargsItem | None, mm_hash: str | None = None) -> MultiModalFeatureSpec:
    return MultiModalFeatureSpec(item, "image", key, PlaceholderRange(0, 2048), mm_hash)


def test_a_none_for_what_is_not_here_is_a_typed_miss() -> None:
    with pytest.raises(CacheMiss) as caught:
        a_cache().get_and_update_item(None, "X")
    assert caught.value.mm_hashes == ["X"]


def test_an_oversized_item_is_returned_and_not_kept() -> None:
    """1 KiB of room, an item of 4 KiB, then one of 64 bytes."""
    cache = a_cache(1024)
    big, small = an_item(4096), an_item(64)
    assert cache.get_and_update_item(big, "big") is big
    assert cache.contents() == []
    cache.get_and_update_item(small, "small")
    assert cache.get_and_update_item(None, "small") is small


def test_a_fresh_item_wins_over_a_smaller_cached_one() -> None:
    cache = a_cache(8192)
    small, large = an_item(64, 1), an_item(2048, 2)
    assert cache.get_and_update_item(small, "X") is small
    (updated,) = cache.get_and_update_features([feature("X", large)])
    assert updated.data is large
    assert updated.mm_position == PlaceholderRange(0, 2048)
    assert cache.get_and_update_item(None, "X") is large


def test_features_missing_are_reported_together_and_the_others_filled() -> None:
    cache = a_cache()
    items = {"A": an_item(1, 1), "B": None, "C": an_item(1, 2), "D": None, "E": None}
    cache.get_and_update_item(items["A"], "here")
    features = [feature(key, item) for key, item in items.items()] + [feature("here", None)]
    with pytest.raises(CacheMiss) as caught:
        cache.get_and_update_features(features)
    assert caught.value.mm_hashes == ["B", "D", "E"]
    assert cache.contents() == [("A", 1), ("C", 1), ("here", 1)]
    assert [feature.data is None for feature in features] == [False, True, False, True, True, False]


def test_adapters_share_an_item_by_its_hash() -> None:
    cache = a_cache()
    item = an_item(5)
    cache.get_and_update_features([feature("a:h", item, "h")])
    (other,) = cache.get_and_update_features([feature("b:h", None, "h")])
    assert other.data is item
    assert cache.contents() == [("h", 5)]


def test_touched_items_stay_while_their_request_brings_others() -> None:
    cache = a_cache(6)
    cache.get_and_update([an_item(2) for _ in "ABC"], list("ABC"))
    request = [feature("D", an_item(1)), feature("E", an_item(1)), feature("A", None), feature("C", None)]
    cache.get_and_update_features(request)
    assert [key for key, _ in cache.contents()] == ["D", "E", "A", "C"]
    cache.touch_receiver_cache_item("E")
    cache.touch_receiver_cache_item("ghost", an_item(1))
    assert [key for key, _ in cache.contents()] == ["D", "A", "C", "E"]


def test_outputs_come_in_prompt_order_and_lengths_must_agree() -> None:
    cache = a_cache()
    first, second = an_item(1, 1), an_item(1, 2)
    assert cache.get_and_update([first, second], ["a", "b"]) == [first, second]
    assert cache.get_and_update([None, None], ["b", "a"]) == [second, first]
    with pytest.raises(ValueError, match="1 items for 2 hashes"):
        cache.get_and_update([None], ["a", "b"])


def test_the_faces_do_not_mix() -> None:
    cache = a_cache()
    cache.ingest(1, [came("frames")])
    with pytest.raises(LocalProtocolError):
        cache.get_and_update_item(None, "frames")
    cache.get_and_update_item(an_item(100), "item")
    with pytest.raises(LocalProtocolError):
        cache.ingest(2, [named("item")])
    handle = Handle("0" * 32, 1, 0, 1, 0, 64)
    with pytest.raises(LocalProtocolError):
        cache.get_and_update_item(ShmItem(handle), "in a ring")


def test_integrity_is_really_checked() -> None:
    cache = a_cache()
    cache._num_hits = 1
    with pytest.raises(InvariantError):
        cache.check_integrity()


def test_closing_lets_go_and_is_repeatable() -> None:
    cache = a_cache()
    cache.ingest(1, [came("a")])
    cache.close()
    cache.close()
    assert cache.contents() == []


@pytest.mark.parametrize(
    ("config", "is_there"),
    [
        (ServiceConfig(mm_processor_cache_type="lru"), True),
        (ServiceConfig(mm_processor_cache_type="lru", mm_processor_cache_gb=0), False),
        (ServiceConfig(mm_processor_cache_type="lru", _api_process_count=2), False),
        (ServiceConfig(mm_processor_cache_type="shm"), False),
        (ServiceConfig(mm_processor_cache_type="processor_only"), False),
    ],
)
def test_the_factory_follows_the_configuration(config: ServiceConfig, is_there: bool) -> None:
    assert (engine_receiver_cache_from_config(config) is not None) == is_there
