"""P1's end by itself."""

from __future__ import annotations

import numpy as np
import pytest

from mmcached.cache.request_lru import RequestLRU
from mmcached.engine.server.frame_cache import FrameCache, ReceivedItem
from mmcached.shm.store import codec
from mmcached.wire.errors import CacheMiss, RemoteProtocolError


def a_cache(capacity: int = 1000) -> FrameCache:
    return FrameCache(RequestLRU(capacity))


def came(key: str, nbytes: int = 100, data: bytes | None = None) -> ReceivedItem:
    return ReceivedItem(key, nbytes, [b"header", data or key.encode()])


def named(key: str, nbytes: int = 100) -> ReceivedItem:
    return ReceivedItem(key, nbytes, None)


def test_frames_come_once() -> None:
    cache = a_cache()
    frames = (b"header", b"a")
    assert cache.ingest(1, [came("a"), named("a")]) == [frames, frames]
    assert cache.ingest(2, [named("a")]) == [frames]
    assert cache.contents() == [("a", 100)]


def test_frames_of_a_real_item_are_within_the_size_that_travels() -> None:
    encoded = codec.encode({"pixels": np.arange(100, dtype=np.uint8), "grid": np.array([2, 3])})
    cache = a_cache(10_000)
    (frames,) = cache.ingest(1, [ReceivedItem("a", encoded.nbytes, encoded.frames())])
    record = codec.decode_record_frames(frames, tensors="numpy")
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
        assert cache.ingest(wrong + 1, [named("c")]) == [(b"header", b"c")]


def test_after_clearing_any_number_may_come() -> None:
    cache = a_cache()
    cache.ingest(17, [came("a")])
    cache.clear()
    assert cache.contents() == []
    cache.ingest(5, [came("b")])
    assert cache.ingest(6, [named("b")]) == [(b"header", b"b")]


@pytest.mark.parametrize(
    ("seq", "item", "field"),
    [(2, ReceivedItem("b", 5, [b"123", b"456"]), "features[1].nbytes"), (0, came("b"), "mirror_seq")],
)
def test_what_contradicts_itself_changes_nothing(seq: int, item: ReceivedItem, field: str) -> None:
    cache = a_cache()
    cache.ingest(1, [came("a")])
    with pytest.raises(RemoteProtocolError) as caught:
        cache.ingest(seq, [came("c"), item])
    assert caught.value.details["field"] == field
    assert cache.contents() == [("a", 100)]
    assert cache.ingest(2, [named("a")])


def test_a_large_memoryview_counts_its_bytes() -> None:
    view = memoryview(bytes(800)).cast("q")  # len() says 100
    with pytest.raises(RemoteProtocolError):
        a_cache().ingest(1, [ReceivedItem("a", 100, [view])])
