"""Entries of one request: nothing shared, dropped when freed."""

from __future__ import annotations

from mmcached.engine import EncoderCacheManager
from tests.engine.builders import encode


def test_nothing_is_shared_between_requests_or_items() -> None:
    book = EncoderCacheManager(10)
    first, second = encode(1, ("a", 4), ("a", 4)), encode(2, ("a", 4))
    book.allocate(first, 0)
    assert not book.has_cache(first, 1)
    assert not book.has_cache(second, 0)
    assert (book.entry_key(first, 0), book.entry_key(second, 0)) == ("1:0", "2:0")


def test_what_is_freed_is_dropped_at_once() -> None:
    book = EncoderCacheManager(10)
    request = encode(1, ("a", 4), ("b", 6))
    book.allocate(request, 0)
    book.allocate(request, 1)
    assert book.num_free_slots == 0
    book.free(request)
    assert book.num_free_slots == 10
    assert not book.has_cache(request, 0)
    assert book.take_freed() == ["1:0", "1:1"]


def test_a_second_free_of_an_index_does_not_make_room() -> None:
    """The published class added the size again, as long as the request held another item."""
    book = EncoderCacheManager(10)
    request = encode(1, ("a", 4), ("b", 6))
    book.allocate(request, 0)
    book.allocate(request, 1)
    book.free_encoder_input(request, 0)
    book.free_encoder_input(request, 0)
    assert book.num_free_slots == 4
    assert book.take_freed() == ["1:0"]
