"""Sharing by content: order of eviction, one encoding per step, sizes that differ, epochs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.engine import Request, SharedEncoderCacheManager
from mmcached.engine.encoder.encoder_inputs import EncoderStepBudget
from mmcached.wire.errors import InvalidRequest
from tests.engine.builders import encode


def allocate_and_free(book: SharedEncoderCacheManager, *requests: Request) -> None:
    for request in requests:
        for input_id in range(len(request.features)):
            book.allocate(request, input_id)
        book.free(request)


# ---- one encoding for all


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


def test_a_reservation_moves_to_another_occurrence_in_its_request() -> None:
    book = SharedEncoderCacheManager(10)
    request = encode(1, ("a", 4), ("a", 4))
    book.begin_step(0)
    book.allocate(request, 0)
    book.check_and_update_cache(request, 1)
    book.free_encoder_input(request, 0)
    assert book.reserved_inputs() == [("a", 1, 1)]
    book.free(request)
    assert book.reserved_inputs() == []
    assert book.num_free_slots == 10


def test_withdrawing_takes_the_reservation_from_all_who_share_it() -> None:
    book = SharedEncoderCacheManager(10)
    first, second = encode(1, ("a", 4)), encode(2, ("b", 4), ("a", 4), ("a", 4))
    book.allocate(second, 0)
    book.begin_step(0)
    book.allocate(first, 0)
    book.check_and_update_cache(second, 1)
    book.check_and_update_cache(second, 2)
    book.withdraw(0)
    assert book.holders() == {2}
    assert book.get_cached_input_ids(second) == {0}
    assert not book.has_cache(second, 1)
    assert (book.num_free_slots, book.num_freeable_slots) == (6, 6)
    assert list(book.freeable) == []
    book.check_integrity()


# ---- one content, two sizes

LOOKING: list[Callable[[SharedEncoderCacheManager, Request], object]] = [
    lambda book, request: book.has_cache(request, 0),
    lambda book, request: book.num_embeds_to_pin(request, 0),
    lambda book, request: book.check_and_update_cache(request, 0),
    lambda book, request: book.allocate(request, 0),
    lambda book, request: EncoderStepBudget(book, 100).plan(request, [0]),
]


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("look", LOOKING)
def test_another_number_of_embeddings_is_refused_and_changes_nothing(
    look: Callable[[SharedEncoderCacheManager, Request], object], *, is_held: bool
) -> None:
    book = SharedEncoderCacheManager(10)
    first, wrong, right = encode(1, ("a", 3)), encode(2, ("a", 4)), encode(3, ("a", 3))
    book.allocate(first, 0)
    if not is_held:
        book.free(first)
    before = book.cached, book.freeable, book.num_free_slots, book.stats()
    with pytest.raises(InvalidRequest, match=r"features\[0\].num_embeds = 4: an item of equal content has 3"):
        look(book, wrong)
    assert (book.cached, book.freeable, book.num_free_slots, book.stats()) == before
    assert book.get_cached_num_encoder_embeds(wrong, 0) == 3
    book.free(wrong)
    book.check_integrity()
    assert book.check_and_update_cache(right, 0)


def test_another_number_of_embeddings_is_refused_in_the_step_that_encodes_the_first() -> None:
    book = SharedEncoderCacheManager(10)
    book.begin_step(0)
    book.allocate(encode(1, ("a", 3)), 0)
    with pytest.raises(InvalidRequest):
        book.check_and_update_cache(encode(2, ("a", 4)), 0)
    book.commit(0)
    assert book.num_embeds_by_hash == {"a": 3}


# ---- epochs


def test_what_is_cached_is_unreachable_in_the_next_epoch() -> None:
    book = SharedEncoderCacheManager(10)
    allocate_and_free(book, encode(1, ("a", 4)), encode(2, ("b", 4)))
    book.new_epoch()
    assert not book.check_and_update_cache(encode(3, ("a", 4)), 0)
    assert (book.num_free_slots, book.num_freeable_slots) == (10, 10)
    assert book.take_freed() == ["a", "b"]


def test_a_content_is_encoded_anew_beside_its_old_output() -> None:
    book = SharedEncoderCacheManager(10)
    old, new = encode(1, ("a", 4), ("a", 4)), encode(2, ("a", 4))
    book.allocate(old, 0)
    book.new_epoch()
    assert not book.has_cache(old, 1), "another occurrence of it is a new reference"
    book.begin_step(0)
    book.allocate(new, 0)
    assert book.check_and_update_cache(old, 1)
    assert [book.entry_key(old, 0), book.entry_key(old, 1), book.entry_key(new, 0)] == ["a", "a@1", "a@1"]
    assert book.reserved_inputs() == [("a@1", 2, 0)]
    book.commit(0)
    assert book.ready_keys() == {"a", "a@1"}
    book.free(old)
    book.free(new)
    assert book.take_freed() == ["a"]
    assert book.freeable == {"a@1": 4}
    book.check_integrity()


def test_old_outputs_of_several_epochs_make_no_room_until_they_end() -> None:
    book = SharedEncoderCacheManager(10)
    requests = [encode(request_id, ("a", 3)) for request_id in range(3)]
    for request in requests:
        book.allocate(request, 0)
        book.new_epoch()
    assert not book.can_allocate(encode(7, ("b", 2)), 0)
    book.check_integrity()
    book.free(requests[1])
    assert book.take_freed() == ["a@1"]
    assert book.num_free_slots == 4


def test_an_old_output_of_another_size_is_no_contradiction() -> None:
    book = SharedEncoderCacheManager(10)
    old, new = encode(1, ("a", 4)), encode(2, ("a", 5))
    book.allocate(old, 0)
    book.new_epoch()
    book.allocate(new, 0)
    assert book.num_embeds_by_hash == {"a@1": 5, "a": 4}


def test_no_two_contents_share_a_key_over_the_epochs() -> None:
    book = SharedEncoderCacheManager(100)
    keys = []
    for epoch in range(3):
        for number, mm_hash in enumerate(["a", "a@1", "a@2", "a@1@1", "@"]):
            request = encode(10 * epoch + number, (mm_hash, 1))
            book.allocate(request, 0)
            keys.append(book.entry_key(request, 0))
        book.new_epoch()
    assert len(set(keys)) == len(keys)
    book.check_integrity()
