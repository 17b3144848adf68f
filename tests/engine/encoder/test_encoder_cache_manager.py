"""Entries of one request: nothing shared, dropped when freed; and the calls of the published class."""

from __future__ import annotations

from mmcached.engine import EncoderCacheManager
from tests.engine.builders import encode


def test_a_caller_of_the_published_class_is_at_home() -> None:
    """Its whole life of a request, with its arguments and nothing of ours."""
    manager = EncoderCacheManager(cache_size=10)
    request, other = encode(1, ("a", 4), ("b", 6)), encode(2, ("c", 5))
    for input_id in (0, 1):
        assert not manager.has_cache(request, input_id)
        assert manager.can_allocate(request, input_id)
        manager.allocate(request, input_id)
    assert manager.get_cached_input_ids(request) == {0, 1}
    assert not manager.can_allocate(other, 0)
    for _ in range(2):  # the published class made room by every call
        manager.free_encoder_input(request, 1)
    assert manager.num_free_slots == 6
    assert manager.can_allocate(other, 0)
    assert manager.get_freed_ids() == [(1, 1)]
    manager.free(request)
    assert manager.get_cached_input_ids(request) == set()
    assert manager.get_freed_ids() == [(1, 0)]
    assert manager.get_freed_ids() == []
    assert manager.num_free_slots == 10


def test_an_item_gives_back_what_it_took_though_it_has_changed_since() -> None:
    book = EncoderCacheManager(10)
    request = encode(1, ("a", 4))
    book.allocate(request, 0)
    request.features = encode(1, ("a", 9)).features
    book.free(request)
    assert book.num_free_slots == 10
