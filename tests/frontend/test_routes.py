"""The routes by which items travel, one for each mode: what is processed, what is sent, and what moves when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mmcached.frontend.factories import processor_cache_from_config
from mmcached.frontend.processing import Processing
from mmcached.frontend.routes import (
    ItemRoute,
    MirrorRoute,
    ProcessorOnlyRoute,
    RingRoute,
    RoutedItem,
    UncachedRoute,
    route_for,
)
from mmcached.frontend.server import grant_when_sent
from mmcached.shm import ObjectStoreWriter, RingWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CorruptImage
from mmcached.wire.handle import Handle
from tests.frontend.fake_peers import png

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
        route = route_for(cache, Processing(config))
        assert type(route) is kind
        yield route


def send(route: ItemRoute, images: list[bytes], *, is_accepted: bool = True) -> list[RoutedItem]:
    items = route.resolve(images, "")
    if is_accepted:
        route.sent(items)
    route.release()
    return items


def test_an_item_is_processed_once_unless_there_is_no_cache(route: ItemRoute, mode: str) -> None:
    send(route, [A, B, A])
    send(route, [A, B])
    assert route.stats().items_processed == (5 if mode == "off" else 2)
    assert route.stats().queries == (0 if mode == "off" else 5)


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
    assert route.stats().inline_items == sum(kind is list for kind in kinds)


def test_refused_request_has_moved_no_mirror(route: ItemRoute, mode: str) -> None:
    before = route.next_mirror_seq
    refused = send(route, [A], is_accepted=False)
    assert route.next_mirror_seq == before
    again = send(route, [A])
    assert type(again[0].payload) is type(refused[0].payload), "the engine has not got it"
    assert (route.next_mirror_seq == before + 1) == (mode == "lru")


def test_bad_image_of_a_request_names_its_index_and_harms_nothing(route: ItemRoute) -> None:
    with pytest.raises(CorruptImage) as caught:
        send(route, [A, b"broken"])
    route.release()
    assert caught.value.details["field"] == "images[1]"
    assert len(send(route, [A, B])) == 2


def test_clear_and_a_new_engine_make_items_travel_again(route: ItemRoute, mode: str) -> None:
    send(route, [A])
    route.engine_changed()
    assert isinstance(send(route, [A])[0].payload, Handle if mode == "shm" else list)
    processed = route.stats().items_processed
    route.clear()
    send(route, [A])
    assert route.stats().items_processed == processed + 1


def test_misses_are_counted_where_the_engine_had_promised(route: ItemRoute, mode: str) -> None:
    (item,) = send(route, [A])
    route.missed([item.mm_hash])
    assert route.num_desyncs == (1 if mode == "lru" else 0)
    assert isinstance(send(route, [A])[0].payload, Handle if mode == "shm" else list)


def test_tenants_do_not_share_items(route: ItemRoute) -> None:
    (ours,), (theirs,) = route.resolve([A], "us"), route.resolve([A], "them")
    route.release()
    assert ours.mm_hash != theirs.mm_hash
