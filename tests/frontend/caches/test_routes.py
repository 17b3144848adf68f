"""The routes by which items travel, one for each mode: what is processed, what is sent, and what moves when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mmcached.frontend.caches.factories import processor_cache_from_config
from mmcached.frontend.caches.routes import (
    ItemRoute,
    MirrorRoute,
    ProcessorOnlyRoute,
    RingRoute,
    RoutedItem,
    UncachedRoute,
    route_for,
)
from mmcached.frontend.processing.item_processor import Processing
from mmcached.frontend.server import grant_when_sent
from mmcached.shm import ObjectStoreWriter, RingWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import Handle
from tests.frontend.fake_peers import png
from tests.frontend.in_process import item_of

NO_INLINE = {"mm_shm_inline_max_kb": 0}
MODES = {
    "off": ({"mm_processor_cache_gb": 0.0}, UncachedRoute),
    "processor_only": ({"mm_processor_cache_type": "processor_only"}, ProcessorOnlyRoute),
    "lru": ({"mm_processor_cache_type": "lru"}, MirrorRoute),
    "shm": ({"mm_processor_cache_gb": 1 / 1024, "mm_shm_cache_max_object_size_mb": 1, **NO_INLINE}, RingRoute),
    "shm, small": ({"mm_processor_cache_gb": 1 / 1024, "mm_shm_cache_max_object_size_mb": 1}, RingRoute),
}
A, B = png(1), png(2)


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def route(mode: str) -> Iterator[ItemRoute]:
    changes, kind = MODES[mode]
    config = ServiceConfig(**changes)  # type: ignore[arg-type]
    with ExitStack() as stack:
        store = None
        if config.ring_data_bytes:
            ring = stack.enter_context(RingWriter.create(data_bytes=config.ring_data_bytes, max_object_bytes=1 << 20))
            store = ObjectStoreWriter(ring)
        cache = processor_cache_from_config(config, store, grant=grant_when_sent)
        route = route_for(cache)
        assert type(route) is kind
        yield route


PROCESSING = Processing(ServiceConfig())
FILES = {PROCESSING.key(data, ""): data for data in (A, B)}


def keys_of(images: list[bytes]) -> list[str]:
    return [PROCESSING.key(data, "") for data in images]


def send(route: ItemRoute, images: list[bytes], *, is_accepted: bool = True) -> list[RoutedItem]:
    """Process what is missing, and send."""
    keys = keys_of(images)
    items = route.resolve(keys, {key: item_of(FILES[key]) for key in route.missing(keys)})
    if is_accepted:
        route.sent(items)
    route.release()
    return items


def test_an_item_is_given_once_unless_there_is_no_cache_and_counts_once_in_a_request(
    route: ItemRoute, mode: str
) -> None:
    assert route.missing(keys_of([A, B, A])) == keys_of([A, B])
    send(route, [A, B, A])
    assert route.missing(keys_of([B, A])) == (keys_of([B, A]) if mode == "off" else [])
    send(route, [A, B])
    stats = route.stats()
    assert (stats.queries, stats.hits) == ((0, 0) if mode == "off" else (4, 2))


def test_what_travels_is_what_the_mode_says(route: ItemRoute, mode: str) -> None:
    first, second = send(route, [A, A]), send(route, [A])
    kinds = [type(item.payload) for item in (*first, *second)]
    assert (
        kinds
        == {
            "off": [list, list, list],
            "processor_only": [list, list, list],
            "lru": [list, type(None), type(None)],
            "shm": [Handle, Handle, Handle],
            "shm, small": [list, list, list],
        }[mode]
    )
    assert len({item.nbytes for item in (*first, *second)}) == 1, "the size is known whether the item travels or not"
    assert {tuple(update.length for update in item.updates) for item in (*first, *second)} == {(1,)}
    assert first[0].payload is first[1].payload or mode == "lru", "the bytes of one request travel once"
    assert route.stats().inline_items == {"lru": 1, "shm": 0}.get(mode, 2)


def test_refused_request_has_moved_no_mirror(route: ItemRoute, mode: str) -> None:
    before = route.next_mirror_seq
    refused = send(route, [A], is_accepted=False)
    assert route.next_mirror_seq == before
    again = send(route, [A])
    assert type(again[0].payload) is type(refused[0].payload), "the engine has not got it"
    assert (route.next_mirror_seq == before + 1) == (mode == "lru")


def test_what_was_processed_for_nobody_is_kept_where_items_are_kept(route: ItemRoute, mode: str) -> None:
    (key,) = keys_of([A])
    for _ in range(2):
        route.keep(key, item_of(A))
    assert route.missing([key]) == ([key] if mode in ("off", "lru") else [])
    assert route.stats().queries == (0 if mode in ("off", "lru") else 1)
    send(route, [A])
    if mode == "lru":
        assert send(route, [A])[0].payload is None, "the mirror has moved by what was sent, and by nothing else"


def test_request_whose_items_do_not_fit_together_is_served(route: ItemRoute) -> None:
    """An item that was there may be evicted by those that come with it: then it has to be given, or is served still."""
    many = [png(shade, (256, 256)) for shade in range(8)]
    FILES.update(zip(keys_of(many), many, strict=True))
    send(route, many[:1])
    for images in (many, many[::-1]):
        handles = [item.payload for item in send(route, images) if isinstance(item.payload, Handle)]
        if isinstance(route, RingRoute):
            assert handles
            assert all(route._cache._store.ring.is_current(handle) for handle in handles), "evicted before it was sent"


def test_clear_and_a_new_engine_make_items_travel_again(route: ItemRoute, mode: str) -> None:
    send(route, [A])
    route.engine_changed()
    assert isinstance(send(route, [A])[0].payload, Handle if mode == "shm" else list)
    route.clear()
    assert route.missing(keys_of([A])) == keys_of([A])


def test_misses_are_counted_where_the_engine_had_promised(route: ItemRoute, mode: str) -> None:
    (item,) = send(route, [A])
    route.missed([item.mm_hash])
    assert route.num_desyncs == (1 if mode == "lru" else 0)
    assert isinstance(send(route, [A])[0].payload, Handle if mode == "shm" else list)


def test_tenants_do_not_share_items() -> None:
    assert PROCESSING.key(A, "us") != PROCESSING.key(A, "them")
