"""The processor cache over a real ring: what lies there, what is kept here, and what is forgotten."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmcached.frontend.store.record_store import RecordStore
from mmcached.gateway.caches.item_cache import OutgoingItem
from mmcached.gateway.caches.item_records import ItemRecords
from mmcached.gateway.caches.stored import StoredItemCache
from mmcached.shm import ObjectStoreReader, RingReader, RingWriter, adopt_ring, encode
from mmcached.shm.segment.mapped import layout_of
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.handle import Handle
from mmcached.wire.saved_stats import SavedOfModality, SavedStats
from mmcached.wire.stats import RingStats, TenantStats
from tests.gateway.caches.items import an_item, send
from tests.present import present
from tests.shm.rings import Taking, attached

KIB = 1 << 10
LARGE = 64 * KIB
RING_BYTES = 1 << 20
CONFIG = ServiceConfig(mm_processor_cache_gb=RING_BYTES / GIB, mm_shm_inline_max_kb=4, store_gb=0)


def ring_of(store: RecordStore) -> RingWriter:
    assert isinstance(store.ring, RingWriter)
    return store.ring


def make_ring(data_bytes: int = RING_BYTES) -> RingWriter:
    return RingWriter.create(
        data_bytes=data_bytes, num_slots=64, max_readers=2, max_object_bytes=4 * LARGE, has_index=True
    )


@pytest.fixture
def store() -> Iterator[RecordStore]:
    with RecordStore.from_config(CONFIG) as store:
        store.adopt(make_ring())
        yield store


@pytest.fixture
def cache(store: RecordStore) -> StoredItemCache:
    return StoredItemCache(CONFIG, ItemRecords(store.in_ring))


def stats_of(store: RecordStore) -> RingStats:
    return store.ring.stats()


def place_of(cache: StoredItemCache, key: str, nbytes: int = LARGE) -> Handle | None:
    payload = send(cache, key, nbytes=nbytes)[0].payload
    return payload if isinstance(payload, Handle) else None


def test_item_is_written_once_and_read_where_it_lies(cache: StoredItemCache, store: RecordStore) -> None:
    handle = present(place_of(cache, "7"))
    assert place_of(cache, "7") == handle
    with ObjectStoreReader(RingReader.open(ring_of(store).announcement)) as reader:
        assert set(reader.get(handle, tensors="numpy", copy=True)["data"]) == {7}
    assert stats_of(store).puts == 1
    assert not ring_of(store).records.is_leased(handle), "the engine takes the lease"


def test_small_items_never_see_the_ring(cache: StoredItemCache, store: RecordStore) -> None:
    below = 4 * KIB - (an_item(0, KIB).encoded.nbytes - KIB) - 1
    for key, nbytes in (("1", below), ("1", below), ("2", below + 1)):
        send(cache, key, nbytes=nbytes)
    stats = cache.stats()
    assert (stats.queries, stats.hits, stats.inline_items, stats.inline_fallbacks) == (3, 1, 2, 0)
    assert stats_of(store).puts == 1


def test_small_items_take_a_sixteenth_and_the_oldest_go(cache: StoredItemCache) -> None:
    size = an_item(0, 2 * KIB).encoded.nbytes
    keys = [str(number) for number in range(100)]
    for key in keys:
        send(cache, key, nbytes=2 * KIB)
    kept = RING_BYTES // 16 // size
    assert cache.missing(keys) == keys[:-kept]
    first = keys[-kept]
    send(cache, *keys[: kept + 5], first, nbytes=2 * KIB)
    assert first not in cache.missing(keys), "served from what was there, and put back"


def test_what_does_not_fit_travels_inline_and_is_counted(cache: StoredItemCache, store: RecordStore) -> None:
    assert place_of(cache, "0", 5 * LARGE) is None, "larger than the ring takes"
    pinned: list[OutgoingItem] = []
    while isinstance((item := cache.resolve([key := str(len(pinned))], {key: an_item(0, LARGE)})[0]).payload, Handle):
        pinned.append(item)
        assert len(pinned) * LARGE <= RING_BYTES, "what is pinned has gone"
    assert len(pinned) > 10
    assert place_of(cache, key) is None, "refused once is not wedged, and never an error"
    assert cache.missing([key]) == [key]
    assert cache.stats().inline_fallbacks == 3
    cache.release([pinned[3]])
    assert place_of(cache, key) is not None
    assert cache.missing(["3", key]) == ["3"], "what is pinned stays"


def test_an_item_that_two_requests_have_pinned_stays_until_both_have_released_it(
    cache: StoredItemCache, store: RecordStore
) -> None:
    first, second = (cache.resolve(["0"], {"0": an_item(0, LARGE)}) for _ in range(2))
    for items in (first, second):
        for number in range(100, 140):
            send(cache, str(number), nbytes=LARGE)
        assert cache.missing(["0"]) == []
        assert stats_of(store).pinned_bytes > 0
        cache.release(items)
    assert stats_of(store).pinned_bytes == 0
    cache.clear()
    cache.release(second)  # of what has gone: nothing


def test_clients_cannot_press_items_out_beyond_their_share() -> None:
    config = ServiceConfig(mm_processor_cache_gb=RING_BYTES / GIB, store_gb=RING_BYTES / GIB, mm_shm_inline_max_kb=0)
    with RecordStore.from_config(config) as store:
        store.adopt(make_ring(2 * RING_BYTES))
        cache = StoredItemCache(config, ItemRecords(store.in_ring))
        items = [str(number) for number in range(8)]
        for key in items:
            assert place_of(cache, key) is not None
        record = an_item(0, LARGE).encoded
        for number in range(100):
            assert store.put("tenant", str(number), record, epoch=store.epoch) is None
        assert cache.missing(items) == []
        assert len(store) - len(ItemRecords(store.in_ring)) == RING_BYTES // (LARGE + KIB)
        assert not store.has("tenant", "0"), "the clients' own go"
        assert store.has("tenant", "99")
        assert store.in_ring.num_share_evictions > 0


def test_what_clients_have_leased_of_their_share_stays_and_a_put_is_refused() -> None:
    config = ServiceConfig(mm_processor_cache_gb=RING_BYTES / GIB, store_gb=RING_BYTES / GIB, mm_shm_inline_max_kb=0)
    with RecordStore.from_config(config) as store:
        store.adopt(make_ring(2 * RING_BYTES))
        with attached(ring_of(store)) as entry, RingReader.open(ring_of(store).announcement) as reader:
            number = 0
            while store.put("", str(number), an_item(0, LARGE).encoded, epoch=store.epoch) is None:
                place = present(store.find("", str(number)))
                assert entry.take_leases([Taking(place)], reader.look) == [True]
                number += 1
                assert number < 100, "the share of the items is not theirs"
            assert number == RING_BYTES // (LARGE + KIB)
            assert all(store.has("", str(each)) for each in range(number))


def test_an_item_is_not_evicted_between_its_put_and_its_engines_lease_whatever_clients_put() -> None:
    config = ServiceConfig(mm_processor_cache_gb=LARGE / GIB, store_gb=RING_BYTES / GIB, mm_shm_inline_max_kb=0)
    with RecordStore.from_config(config) as store:
        store.adopt(make_ring())  # smaller than both shares: the ring itself has to evict
        cache = StoredItemCache(config, ItemRecords(store.in_ring))
        pinned = cache.resolve(["7"], {"7": an_item(7, LARGE // 2)})
        handle = pinned[0].payload
        assert isinstance(handle, Handle)
        for number in range(100):
            store.put("", str(number), an_item(0, LARGE).encoded, epoch=store.epoch)
        with ObjectStoreReader(RingReader.open(ring_of(store).announcement)) as reader:
            assert set(reader.get(handle, tensors="numpy", copy=True)["data"]) == {7}
        cache.release(pinned)


def test_a_service_without_a_store_keeps_items_and_no_records(cache: StoredItemCache, store: RecordStore) -> None:
    assert place_of(cache, "1") is not None
    assert store.put("", "key", encode({"n": 1}), epoch=store.epoch) == "the service keeps no records (store_gb = 0)"
    assert not store.takes_records


def test_what_the_ring_evicts_is_missing(cache: StoredItemCache, store: RecordStore) -> None:
    keys = [str(number) for number in range(200)]
    for key in keys:
        assert place_of(cache, key) is not None
    assert stats_of(store).evictions == store.in_ring.num_item_evictions == 200 - len(store)
    assert len(cache.missing(keys)) == 200 - len(store)


def test_a_successor_hits_what_its_predecessor_has_kept(cache: StoredItemCache, store: RecordStore) -> None:
    places = {key: place_of(cache, key) for key in ("7", "8")}
    place_of(cache, "9", nbytes=2 * KIB)
    ItemRecords(store.in_ring).put("probe", encode({"x": [1]}), 0)
    ring = ring_of(store)
    ring.outlives_writer = True
    store.close()
    with RecordStore.from_config(CONFIG) as successor:
        successor.adopt(adopt_ring(ring.announcement, layout_of(ring.announcement), max_object_bytes=4 * LARGE))
        cache = StoredItemCache(CONFIG, ItemRecords(successor.in_ring))
        assert cache.missing(["7", "8", "9"]) == ["9"]
        items = cache.resolve(["7", "8"], {})
        assert [item.payload for item in items] == [places["7"], places["8"]]
        assert [item.num_embeds for item in items] == [an_item(7, LARGE).num_embeds, an_item(8, LARGE).num_embeds]
        assert not ItemRecords(successor.in_ring).has("probe")
        cache.release(items)


def test_a_found_item_saves_its_cost_also_after_a_restart(store: RecordStore) -> None:
    items = ItemRecords(store.in_ring)
    assert items.put("a", encode({"x": [1]}), 1, 0.5) is not None
    assert items.put("b", encode({"x": [1]}), 1) is not None
    for key in ("a", "b", "c"):
        items.count_saved(key, "video", "t")
    saved = SavedStats(video=SavedOfModality(processor_us=500_000))
    assert (store.saved.stats(), store.saved.by_tenant()) == (saved, {"t": TenantStats(saved_us=500_000)})
    ring = ring_of(store)
    ring.outlives_writer = True
    store.close()
    with RecordStore.from_config(CONFIG) as successor:
        successor.adopt(adopt_ring(ring.announcement, layout_of(ring.announcement), max_object_bytes=4 * LARGE))
        ItemRecords(successor.in_ring).count_saved("a", "video", "t")
        assert successor.saved.stats() == saved


def test_items_outlive_a_flush_of_no_one_but_themselves(cache: StoredItemCache, store: RecordStore) -> None:
    place_of(cache, "1")
    cache.clear()
    assert (cache.missing(["1"]), len(store), len(ItemRecords(store.in_ring))) == (["1"], 0, 0)
    place_of(cache, "1")
    store.clear()
    assert cache.missing(["1"]) == ["1"]
