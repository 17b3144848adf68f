"""What all books of the encoder cache promise, whatever the scope of their entries. Each one runs it:

    @pytest.mark.parametrize("promise", ENCODER_BOOK_PROMISES)
    def test_promises(promise, book):
        promise(book)

A promise gets fresh books for `CACHE_SIZE` embeddings. Requests are told apart by their ids, contents by letters.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import encode

CACHE_SIZE = 10

Promise = Callable[[EncoderCacheTable], None]


# ---- entries and references


def a_miss_is_allocated_and_found(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4))
    assert not book.has_cache(request, 0)
    assert not book.check_and_update_cache(request, 0)
    assert book.get_cached_num_encoder_embeds(request, 0) is None
    assert book.can_allocate(request, 0)
    book.allocate(request, 0)
    assert book.has_cache(request, 0)
    assert book.check_and_update_cache(request, 0)
    assert book.get_cached_num_encoder_embeds(request, 0) == 4
    assert book.get_cached_input_ids(request) == {0}
    assert (book.num_free_slots, book.num_freeable_slots) == (6, 6)
    assert book.holders() == {1}
    book.check_integrity()


def releasing_what_is_not_held_changes_nothing(book: EncoderCacheTable) -> None:
    request, stranger = encode(1, ("a", 4), ("b", 5)), encode(2, ("a", 4))
    book.allocate(request, 0)
    book.allocate(request, 1)
    book.free_encoder_input(request, 0)
    for _ in range(3):
        book.free_encoder_input(request, 0)  # the request still holds item 1
        book.free_encoder_input(stranger, 0)
        book.free(stranger)
        book.check_integrity()
        assert book.num_freeable_slots == 5
    assert book.get_cached_input_ids(request) == {1}


def releasing_all_items_after_every_step_makes_no_room(book: EncoderCacheTable) -> None:
    """As one does for encoder-decoder models: what counted down on every release grew without limit."""
    request = encode(1, ("a", 6))
    book.begin_step(0)
    book.allocate(request, 0)
    book.commit(0)
    for step_id in range(1, 6):
        book.begin_step(step_id)
        book.commit(step_id)
        for input_id in range(len(request.features)):
            book.free_encoder_input(request, input_id)
        assert book.num_freeable_slots == CACHE_SIZE
        assert not book.can_allocate(encode(2, ("b", CACHE_SIZE + 1)), 0)
        book.check_integrity()


def a_request_lets_go_of_all_its_items(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4), ("b", 5))
    book.allocate(request, 0)
    book.allocate(request, 1)
    book.free(request)
    assert book.get_cached_input_ids(request) == set()
    assert book.num_freeable_slots == CACHE_SIZE
    assert book.holders() == set()
    book.check_integrity()


def cached_ids_are_exactly_those_allocated(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 1), ("b", 1), ("c", 1))
    book.allocate(request, 0)
    book.allocate(request, 2)
    cached = book.get_cached_input_ids(request)
    assert cached == {0, 2}
    cached.clear()
    assert book.get_cached_input_ids(request) == {0, 2}


def space_and_compute_limit_what_may_be_allocated(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 5), ("b", 6))
    assert book.can_allocate(request, 0, 5, 5)
    assert not book.can_allocate(request, 1, 10, 5)  # 11 of 10 embeddings of space
    assert not book.can_allocate(request, 1, 5, 0)  # 6 of 5 embeddings of compute
    assert book.can_allocate(request, 1, encoder_compute_budget=None, num_embeds_to_schedule=4)
    assert book.num_free_slots == CACHE_SIZE


def what_is_there_or_does_not_fit_is_not_allocated(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4), ("b", 7))
    book.allocate(request, 0)
    for input_id, reason in ((0, "cached already"), (1, "7 embeddings, 6 free")):
        with pytest.raises(LocalProtocolError, match=reason):
            book.allocate(request, input_id)
    assert (book.num_free_slots, book.num_freeable_slots) == (6, 6)
    assert book.stats().queries == 1
    book.check_integrity()


def a_reset_clears_everything(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", CACHE_SIZE))
    book.begin_step(0)
    book.allocate(request, 0)
    book.reset()
    assert (book.num_free_slots, book.num_freeable_slots) == (CACHE_SIZE, CACHE_SIZE)
    assert not book.has_cache(request, 0)
    assert (book.take_freed(), book.ready_keys(), book.lingering_keys()) == ([], set(), set())
    book.free(request)
    other = encode(2, ("b", CACHE_SIZE))
    book.begin_step(0)
    book.allocate(other, 0)
    book.commit(0)
    book.check_integrity()


# ---- steps


def what_a_step_reserves_is_ready_after_its_commit(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4))
    book.begin_step(0)
    book.allocate(request, 0)
    key = book.entry_key(request, 0)
    assert book.reserved_inputs() == [(key, 1, 0)]
    assert book.has_cache(request, 0)
    assert book.ready_keys() == set()
    book.commit(0)
    assert book.has_cache(request, 0)
    assert book.ready_keys() == {key}
    book.begin_step(1)
    assert book.reserved_inputs() == []
    book.check_integrity()


def a_withdrawn_reservation_leaves_nothing(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4), ("b", 4))
    book.allocate(request, 0)
    book.begin_step(0)
    book.allocate(request, 1)
    key = book.entry_key(request, 1)
    book.withdraw(0)
    assert not book.has_cache(request, 1)
    assert book.get_cached_input_ids(request) == {0}
    assert book.num_free_slots == 6
    assert book.lingering_keys() == {key}
    assert book.take_freed() == [key]  # a worker may have made it all the same
    book.check_integrity()


def a_reservation_given_up_in_its_step_leaves_nothing(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4))
    book.begin_step(0)
    book.allocate(request, 0)
    book.free(request)
    assert book.reserved_inputs() == []
    assert not book.has_cache(request, 0)
    book.commit(0)
    assert not book.has_cache(request, 0)
    assert book.num_free_slots == CACHE_SIZE
    book.check_integrity()


def freed_keys_are_told_once(book: EncoderCacheTable) -> None:
    request, other = encode(1, ("a", 6)), encode(2, ("b", 6))
    book.allocate(request, 0)
    key = book.entry_key(request, 0)
    book.free(request)
    book.begin_step(0)
    book.allocate(other, 0)
    assert book.lingering_keys() == {key}
    assert book.take_freed() == [key]
    assert book.take_freed() == []
    assert book.lingering_keys() == {key}, "the step may fail yet"
    book.commit(0)
    assert book.take_freed() == []
    assert book.lingering_keys() == set()


def freed_keys_of_a_withdrawn_step_are_told_again(book: EncoderCacheTable) -> None:
    request, other = encode(1, ("a", 6)), encode(2, ("b", 6))
    book.allocate(request, 0)
    book.free(request)
    book.begin_step(0)
    book.allocate(other, 0)
    assert book.take_freed() == [book.entry_key(request, 0)]
    book.withdraw(0)
    assert book.take_freed() == [book.entry_key(request, 0), book.entry_key(other, 0)]


def what_is_freed_and_reserved_again_is_not_told(book: EncoderCacheTable) -> None:
    request, other = encode(1, ("a", 6)), encode(2, ("b", 6))
    book.allocate(request, 0)
    book.free(request)
    book.allocate(other, 0)  # now "a" is gone in both scopes
    book.free(other)
    book.begin_step(0)
    book.allocate(request, 0)
    assert book.take_freed() == [book.entry_key(other, 0)]
    assert [reserved.key for reserved in book.reserved_inputs()] == [book.entry_key(request, 0)]


def steps_do_not_overlap(book: EncoderCacheTable) -> None:
    with pytest.raises(LocalProtocolError):
        book.withdraw(0)
    book.begin_step(0)
    with pytest.raises(LocalProtocolError):
        book.begin_step(1)
    with pytest.raises(LocalProtocolError):
        book.commit(1)
    book.commit(0)


# ---- epochs


def who_holds_an_old_output_goes_on_with_it(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4))
    book.allocate(request, 0)
    key = book.entry_key(request, 0)
    assert book.new_epoch() == book.epoch == 1
    assert book.has_cache(request, 0)
    assert book.check_and_update_cache(request, 0)
    assert book.entry_key(request, 0) == key
    assert book.ready_keys() == {key}
    assert book.num_freeable_slots == 6
    assert book.take_freed() == []
    book.check_integrity()


def an_old_output_ends_with_its_last_reference(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4))
    book.allocate(request, 0)
    key = book.entry_key(request, 0)
    book.new_epoch()
    book.free_encoder_input(request, 0)
    assert not book.has_cache(request, 0)
    assert (book.num_free_slots, book.num_freeable_slots) == (CACHE_SIZE, CACHE_SIZE)
    assert book.take_freed() == [key]
    book.check_integrity()


def an_item_has_another_key_in_another_epoch(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4))
    keys = []
    for _ in range(3):
        book.allocate(request, 0)
        keys.append(book.entry_key(request, 0))
        book.new_epoch()
        book.free(request)
    assert len(set(keys)) == 3
    assert book.take_freed() == keys


def a_new_epoch_in_a_step_makes_what_it_encodes_old(book: EncoderCacheTable) -> None:
    """The plan is under way: the workers encode with the weights of before."""
    request = encode(1, ("a", 4), ("b", 4))
    book.begin_step(0)
    book.allocate(request, 0)
    book.allocate(request, 1)
    keys = [book.entry_key(request, input_id) for input_id in (0, 1)]
    book.new_epoch()
    book.free_encoder_input(request, 1)
    assert [reserved.key for reserved in book.reserved_inputs()] == keys[:1]
    book.commit(0)
    assert book.ready_keys() == {keys[0]}
    book.free(request)
    assert book.take_freed() == [keys[1], keys[0]]
    assert book.num_free_slots == CACHE_SIZE
    book.check_integrity()


def an_old_reservation_is_withdrawn_like_any(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4))
    book.begin_step(0)
    book.allocate(request, 0)
    book.new_epoch()
    book.withdraw(0)
    assert not book.has_cache(request, 0)
    assert book.num_free_slots == CACHE_SIZE
    book.check_integrity()


def a_reset_goes_on_in_its_epoch(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4))
    key = book.entry_key(request, 0)
    book.new_epoch()
    book.reset()
    assert book.epoch == 1
    assert book.entry_key(request, 0) != key


# ---- statistics


def queries_count_what_was_taken_up(book: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4))
    book.has_cache(request, 0)
    book.check_and_update_cache(request, 0)
    book.allocate(request, 0)
    book.check_and_update_cache(request, 0)
    stats = book.stats()
    assert (stats.queries, stats.hits, stats.embeds_used, stats.embeds_total) == (1, 0, 4, CACHE_SIZE)


ENCODER_BOOK_PROMISES: list[Promise] = [
    a_miss_is_allocated_and_found,
    releasing_what_is_not_held_changes_nothing,
    releasing_all_items_after_every_step_makes_no_room,
    a_request_lets_go_of_all_its_items,
    cached_ids_are_exactly_those_allocated,
    space_and_compute_limit_what_may_be_allocated,
    what_is_there_or_does_not_fit_is_not_allocated,
    a_reset_clears_everything,
    what_a_step_reserves_is_ready_after_its_commit,
    a_withdrawn_reservation_leaves_nothing,
    a_reservation_given_up_in_its_step_leaves_nothing,
    freed_keys_are_told_once,
    freed_keys_of_a_withdrawn_step_are_told_again,
    what_is_freed_and_reserved_again_is_not_told,
    steps_do_not_overlap,
    who_holds_an_old_output_goes_on_with_it,
    an_old_output_ends_with_its_last_reference,
    an_item_has_another_key_in_another_epoch,
    a_new_epoch_in_a_step_makes_what_it_encodes_old,
    an_old_reservation_is_withdrawn_like_any,
    a_reset_goes_on_in_its_epoch,
    queries_count_what_was_taken_up,
]
