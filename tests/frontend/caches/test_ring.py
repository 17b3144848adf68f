"""The processor cache over a real ring: what lies there, what is kept here, and what is forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmcached.frontend.caches.ring import RingItemCache
from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, ReaderEntry, RingReader, RingWriter, adopt_ring
from mmcached.shm.segment.mapped import layout_of
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import InvariantError
from mmcached.wire.handle import Handle
from tests.frontend.caches.items import an_item, send

KIB = 1 << 10
LARGE = 64 * KIB
RING_BYTES = 1 << 20


@pytest.fixture
def store() -> Iterator[ObjectStoreWriter]:
    ring = RingWriter.create(data_bytes=RING_BYTES, num_slots=64, max_readers=2, max_object_bytes=4 * LARGE)
    with ObjectStoreWriter(ring) as store:
        yield store


@pytest.fixture
def cache(store: ObjectStoreWriter) -> RingItemCache:
    return RingItemCache(ServiceConfig(mm_processor_cache_gb=RING_BYTES / GIB, mm_shm_inline_max_kb=4), store)


def place_of(cache: RingItemCache, key: str, nbytes: int = LARGE) -> Handle | None:
    payload = send(cache, key, nbytes=nbytes)[0].payload
    return payload if isinstance(payload, Handle) else None


def test_item_is_written_once_and_read_where_it_lies(cache: RingItemCache, store: ObjectStoreWriter) -> None:
    handle = place_of(cache, "7")
    assert handle is not None
    assert place_of(cache, "7") == handle
    with ObjectStoreReader(RingReader.open(store.ring.announcement)) as reader:
        assert set(reader.get(handle, tensors="numpy", copy=True)["data"]) == {7}
    assert (store.stats().puts, store.stats().grants) == (1, 0), "leases are granted as the message is sent"


def test_small_items_never_see_the_ring(cache: RingItemCache, store: ObjectStoreWriter) -> None:
    below = 4 * KIB - (an_item(0, KIB).encoded.nbytes - KIB) - 1
    for key, nbytes in (("1", below), ("1", below), ("2", below + 1)):
        send(cache, key, nbytes=nbytes)
    stats = cache.stats()
    assert (stats.queries, stats.hits, stats.inline_items, stats.inline_fallbacks) == (3, 1, 2, 0)
    assert store.stats().puts == 1


def test_small_items_take_a_sixteenth_and_the_oldest_go(cache: RingItemCache) -> None:
    size = an_item(0, 2 * KIB).encoded.nbytes
    keys = [str(number) for number in range(100)]
    for key in keys:
        send(cache, key, nbytes=2 * KIB)
    kept = RING_BYTES // 16 // size
    assert cache.missing(keys) == keys[:-kept]
    first = keys[-kept]
    send(cache, *keys[: kept + 5], first, nbytes=2 * KIB)
    assert first not in cache.missing(keys), "served from what was there, and put back"


def test_what_does_not_fit_travels_inline_and_is_counted(cache: RingItemCache, store: ObjectStoreWriter) -> None:
    assert place_of(cache, "0", 5 * LARGE) is None, "larger than the ring takes"
    with ReaderEntry.attach(store.ring.announcement) as entry:
        assert store.ring.attach(entry.reader_id, entry.incarnation)
        leased: list[Handle] = []
        while (handle := place_of(cache, str(len(leased)))) is not None:
            store.ring.grant(entry.reader_id, handle)
            leased.append(handle)
        assert len(leased) > 10
        refused = str(len(leased))
        assert place_of(cache, refused) is None, "refused once is not wedged, and never an error"
        assert cache.missing([refused]) == [refused]
        assert cache.stats().inline_fallbacks == cache.stats().inline_items == 3
        entry.give_back(leased[3])
        assert place_of(cache, refused) is not None
        assert cache.missing(["3", refused]) == ["3"]


def test_what_the_ring_evicts_is_missing(cache: RingItemCache, store: ObjectStoreWriter) -> None:
    keys = [str(number) for number in range(200)]
    for key in keys:
        assert place_of(cache, key) is not None
    assert store.stats().evictions == 200 - len(store)
    assert len(cache.missing(keys)) == 200 - len(store)


def test_integrity_is_really_checked(cache: RingItemCache, store: ObjectStoreWriter) -> None:
    place_of(cache, "1")
    store.discard("1")
    with pytest.raises(InvariantError, match="notes"):
        cache.check_integrity()


def test_small_items_that_lie_in_the_ring_too_outlive_a_frontend(store: ObjectStoreWriter) -> None:
    config = ServiceConfig(mm_processor_cache_gb=RING_BYTES / GIB, mm_shm_inline_max_kb=0)
    place = place_of(RingItemCache(config, store), "7", nbytes=100)
    assert place is not None
    store.ring.outlives_writer = True
    store.close()
    names = store.ring.announcement
    with ObjectStoreWriter(adopt_ring(names, layout_of(names), max_object_bytes=4 * LARGE)) as adopted:
        assert place_of(RingItemCache(config, adopted), "7", nbytes=100) == place


def test_a_successor_hits_what_its_predecessor_has_kept_in_the_ring(
    cache: RingItemCache, store: ObjectStoreWriter
) -> None:
    places = {key: place_of(cache, key) for key in ("7", "8")}
    place_of(cache, "9", nbytes=2 * KIB)
    store.put("probe", {"x": [1]})
    store.ring.outlives_writer = True
    store.close()
    names = store.ring.announcement
    with ObjectStoreWriter(adopt_ring(names, layout_of(names), max_object_bytes=4 * LARGE)) as adopted:
        successor = RingItemCache(ServiceConfig(mm_processor_cache_gb=RING_BYTES / GIB), adopted)
        assert successor.missing(["7", "8", "9"]) == ["9"]
        items = successor.resolve(["7", "8"], {})
        assert [item.payload for item in items] == [places["7"], places["8"]]
        assert [item.num_embeds for item in items] == [an_item(7, LARGE).num_embeds, an_item(8, LARGE).num_embeds]
        assert adopted.find("probe") is None
        successor.release()
        successor.check_integrity()
