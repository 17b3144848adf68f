"""The processor caches of all modes: what is processed, what is sent, and what moves when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mmcached.cache.request_lru import RequestLRU
from mmcached.frontend.store.record_store import RecordStore
from mmcached.gateway.caches.from_config import item_cache_from_config
from mmcached.gateway.caches.item_cache import ItemCache
from mmcached.gateway.caches.item_records import ItemRecords
from mmcached.gateway.caches.local import LocalItemCache
from mmcached.gateway.caches.mirrored import MirroredItemCache
from mmcached.gateway.caches.stored import StoredItemCache
from mmcached.shm import RingWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import Handle
from tests.gateway.caches.items import an_item, send

SHM = {"mm_processor_cache_gb": 1 / 1024, "mm_shm_cache_max_object_size_mb": 1}
MODES: dict[str, tuple[dict[str, Any], type[ItemCache]]] = {
    "off": ({"mm_processor_cache_gb": 0.0}, ItemCache),
    "no multimodal model": ({"is_multimodal_model": False}, ItemCache),
    "processor_only": ({"mm_processor_cache_type": "processor_only"}, LocalItemCache),
    "lru": ({"mm_processor_cache_type": "lru"}, MirroredItemCache),
    "lru, two senders": ({"mm_processor_cache_type": "lru", "_api_process_count": 2}, LocalItemCache),
    "shm": (SHM | {"mm_shm_inline_max_kb": 0}, StoredItemCache),
    "shm, small": (SHM, StoredItemCache),
}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(mode: str) -> Iterator[RecordStore]:
    config = ServiceConfig(**MODES[mode][0])
    with RecordStore.from_config(config) as store:
        if config.ring_data_bytes:
            store.adopt(RingWriter.create(data_bytes=config.ring_data_bytes, max_object_bytes=config.max_object_bytes))
        yield store


@pytest.fixture
def cache(mode: str, store: RecordStore) -> ItemCache:
    changes, kind = MODES[mode]
    cache = item_cache_from_config(ServiceConfig(**changes), ItemRecords(store.in_ring))
    assert type(cache) is kind
    return cache


def is_off(cache: ItemCache) -> bool:
    return type(cache) is ItemCache


def test_without_a_ring_nothing_is_kept_that_is_not_small() -> None:
    with RecordStore.from_config(ServiceConfig()) as store:
        cache = item_cache_from_config(ServiceConfig(), ItemRecords(store.in_ring))
        assert isinstance(send(cache, "0", nbytes=100_000)[0].payload, list)
        assert cache.missing("0") == ["0"]


def test_an_item_is_given_once_unless_there_is_no_cache_and_counts_once_in_a_request(cache: ItemCache) -> None:
    assert cache.missing("010") == ["0", "1"]
    send(cache, *"010")
    assert cache.missing("10") == (["1", "0"] if is_off(cache) else [])
    send(cache, *"01")
    stats = cache.stats()
    assert (stats.queries, stats.hits) == ((0, 0) if is_off(cache) else (4, 2))


def test_what_travels_is_what_the_mode_says(cache: ItemCache, mode: str) -> None:
    first, second = send(cache, *"00"), send(cache, "0")
    kinds = [type(item.payload) for item in (*first, *second)]
    expected: dict[str, list[type]] = {"lru": [list, type(None), type(None)], "shm": [Handle] * 3}
    assert kinds == expected.get(mode, [list] * 3)
    assert len({item.nbytes for item in (*first, *second)}) == 1, "the size is known whether the item travels or not"
    assert {item.num_embeds for item in (*first, *second)} == {1}
    assert first[0].payload is first[1].payload or mode == "lru", "the bytes of one request travel once"
    assert cache.stats().inline_items == {"lru": 1, "shm": 0}.get(mode, 2)


def test_refused_request_has_moved_no_mirror(cache: ItemCache, mode: str) -> None:
    before = cache.next_mirror_seq
    (refused,) = send(cache, "0", is_accepted=False)
    assert cache.next_mirror_seq == before
    (again,) = send(cache, "0")
    assert type(again.payload) is type(refused.payload), "the engine has not got it"
    assert (cache.next_mirror_seq == before + 1) == (mode == "lru")


def test_what_was_processed_for_nobody_is_kept_where_items_are_kept(cache: ItemCache, mode: str) -> None:
    is_kept_here = mode != "lru" and not is_off(cache)
    for _ in range(2):
        cache.keep("0", an_item(0))
    assert cache.missing("0") == ([] if is_kept_here else ["0"])
    assert cache.stats().queries == is_kept_here
    send(cache, "0")
    if mode == "lru":
        assert send(cache, "0")[0].payload is None, "the mirror has moved by what was sent, and by nothing else"


def test_request_whose_items_do_not_fit_together_is_served(cache: ItemCache, store: RecordStore) -> None:
    """An item that was there may be evicted by those that come with it: then it has to be given, or is served still."""
    many = [str(number) for number in range(20)]
    send(cache, many[0], nbytes=100_000)
    for keys in (many, many[::-1]):
        items = cache.resolve(keys, {key: an_item(int(key), 100_000) for key in cache.missing(keys)})
        assert [item.num_embeds for item in items] == [int(key) + 1 for key in keys]
        if isinstance(cache, StoredItemCache):
            assert isinstance(store.ring, RingWriter)
            handles = [item.payload for item in items if isinstance(item.payload, Handle)]
            assert handles
            assert all(store.ring.records.is_current(handle) for handle in handles), "evicted before it was released"
        cache.sent(items)
        cache.release(items)


def test_item_that_is_larger_than_the_cache_is_served_and_counted() -> None:
    for cache in (LocalItemCache(1000), MirroredItemCache(RequestLRU(1000))):
        for _ in range(2):
            assert [type(item.payload) for item in send(cache, "1", nbytes=2000)] == [list]
        send(cache, "2")
        assert cache.missing("12") == ["1"]
        stats = cache.stats()
        assert (stats.queries, stats.hits, stats.inline_items, stats.inline_fallbacks) == (3, 0, 3, 2)


def test_clear_and_a_new_engine_make_items_travel_again(cache: ItemCache, mode: str) -> None:
    travels = Handle if mode == "shm" else list
    send(cache, "0")
    cache.engine_changed()
    assert isinstance(send(cache, "0")[0].payload, travels)
    cache.clear()
    assert cache.missing("0") == ["0"]


def test_misses_are_counted_where_the_engine_had_promised(cache: ItemCache, mode: str) -> None:
    travels = Handle if mode == "shm" else list
    send(cache, "0")
    cache.missed(["0"])
    assert cache.num_desyncs == (1 if mode == "lru" else 0)
    assert isinstance(send(cache, "0")[0].payload, travels)
