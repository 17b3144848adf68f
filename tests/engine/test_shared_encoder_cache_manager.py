"""Sharing by content, lazy eviction in order of release, repeats within a request, one encoding per step."""

from __future__ import annotations

import pytest

from mmcached.engine import Request, SharedEncoderCacheManager
from tests.engine.builders import encode


def allocate_and_free(book: SharedEncoderCacheManager, request: Request) -> None:
    for input_id in range(len(request.features)):
        book.allocate(request, input_id)
    book.free(request)


def can_allocate(book: SharedEncoderCacheManager, request: Request) -> bool:
    return book.can_allocate(request, 0, 1000, 0)


def test_freed_entries_stay_until_room_is_needed() -> None:
    book = SharedEncoderCacheManager(10)
    request = encode(1, ("a", 4))
    book.allocate(request, 0)
    book.free_encoder_input(request, 0)
    book.free_encoder_input(request, 0)
    assert (book.num_free_slots, book.num_freeable_slots) == (6, 10)
    assert book.evictable_keys() == ["a"]
    assert book.take_freed() == []
    assert book.check_and_update_cache(encode(2, ("a", 4)), 0)
    assert book.evictable_keys() == []
    assert (book.num_free_slots, book.num_freeable_slots) == (6, 6)


def test_asking_is_pure_and_allocating_evicts() -> None:
    book = SharedEncoderCacheManager(10)
    x, y = encode(1, ("x", 6)), encode(2, ("y", 5))
    allocate_and_free(book, x)
    assert can_allocate(book, y)
    assert book.has_cache(x, 0)
    assert book.take_freed() == []
    book.allocate(y, 0)
    assert not book.has_cache(x, 0)
    assert book.take_freed() == ["x"]
    assert book.take_freed() == []
    assert book.stats().evictions == 1


def test_a_reference_protects_from_eviction() -> None:
    book = SharedEncoderCacheManager(10)
    allocate_and_free(book, encode(1, ("a", 5)))
    waiter, newcomer = encode(2, ("a", 5)), encode(3, ("b", 6))
    assert book.num_embeds_to_pin(waiter, 0) == 5
    assert book.check_and_update_cache(waiter, 0)
    assert book.num_embeds_to_pin(waiter, 0) == 0
    assert not can_allocate(book, newcomer)
    book.free(waiter)
    assert can_allocate(book, newcomer)
    book.allocate(newcomer, 0)
    assert book.take_freed() == ["a"]


def test_evicted_and_allocated_again_is_not_told() -> None:
    book = SharedEncoderCacheManager(8)
    allocate_and_free(book, encode(1, ("a", 4)))
    allocate_and_free(book, encode(2, ("b", 4)))
    allocate_and_free(book, encode(3, ("c", 4)))  # evicts a
    book.allocate(encode(4, ("a", 4)), 0)  # evicts b
    assert book.take_freed() == ["b"]


def test_the_longest_released_goes_first() -> None:
    book = SharedEncoderCacheManager(9)
    for request_id, mm_hash in enumerate("abc"):
        allocate_and_free(book, encode(request_id, (mm_hash, 3)))
    again = encode(7, ("a", 3))
    book.check_and_update_cache(again, 0)
    book.free(again)
    assert book.evictable_keys() == ["b", "c", "a"]
    book.allocate(encode(8, ("d", 4)), 0)
    assert book.evictable_keys() == ["a"]


def test_only_as_much_is_evicted_as_needed() -> None:
    book = SharedEncoderCacheManager(10)
    for request_id, mm_hash in enumerate("abc"):
        allocate_and_free(book, encode(request_id, (mm_hash, 3)))
    book.allocate(encode(7, ("d", 2)), 0)
    assert book.take_freed() == ["a"]
    assert book.num_free_slots == 2


def test_a_repeated_item_is_held_until_its_last_occurrence() -> None:
    book = SharedEncoderCacheManager(20)
    request = encode(1, ("a", 4), ("b", 4), ("a", 4))
    book.allocate(request, 0)
    book.allocate(request, 1)
    assert book.check_and_update_cache(request, 2)
    assert book.num_free_slots == 12
    book.free_encoder_input(request, 0)
    book.free_encoder_input(request, 1)
    assert book.num_freeable_slots == 16
    assert book.evictable_keys() == ["b"]
    book.free_encoder_input(request, 2)
    assert book.num_freeable_slots == 20
    book.check_integrity()


def test_many_items_and_a_repeat_are_released_once_each() -> None:
    book = SharedEncoderCacheManager(64)
    request = encode(1, *((f"h{number}", 1) for number in range(64)), ("h0", 1))
    for input_id in range(64):
        book.allocate(request, input_id)
    assert book.check_and_update_cache(request, 64)
    book.free(request)
    assert (book.num_free_slots, book.num_freeable_slots) == (0, 64)
    book.check_integrity()


def test_several_requests_in_a_step_share_one_reservation() -> None:
    book = SharedEncoderCacheManager(10)
    first, second = encode(1, ("a", 4)), encode(2, ("b", 4), ("a", 4))
    book.begin_step(0)
    book.allocate(first, 0)
    assert book.check_and_update_cache(second, 1)
    assert [reserved.key for reserved in book.reserved_inputs()] == ["a"]
    book.free(first)  # the second still needs it: it stays in the plan, now on the second's account
    (reserved,) = book.reserved_inputs()
    assert (reserved.request_id, reserved.input_id) == (2, 1)
    book.commit(0)
    assert book.has_cache(second, 1)
    book.check_integrity()


def test_withdrawing_takes_the_reservation_from_all_who_share_it() -> None:
    book = SharedEncoderCacheManager(10)
    first, second = encode(1, ("a", 4)), encode(2, ("a", 4))
    book.begin_step(0)
    book.allocate(first, 0)
    book.check_and_update_cache(second, 0)
    book.withdraw(0)
    assert book.holders() == set()
    assert not book.has_cache(second, 0)
    assert (book.num_free_slots, book.num_freeable_slots) == (10, 10)
    assert book.evictable_keys() == []


@pytest.mark.parametrize("is_same", [True, False])
def test_hits_are_items_that_are_not_encoded_again(is_same: bool) -> None:
    book = SharedEncoderCacheManager(10)
    book.allocate(encode(1, ("a", 4)), 0)
    book.check_and_update_cache(encode(2, ("a" if is_same else "b", 4)), 0)
    assert (book.stats().queries, book.stats().hits) == ((2, 1) if is_same else (1, 0))
