"""What both encoder cache managers promise: sizes, references, steps, and what workers are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.engine import EncoderCacheBook, Request, make_encoder_cache_manager
from mmcached.engine.encoder_cache_book import EncoderCacheScope
from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import encode

SCOPES: tuple[EncoderCacheScope, ...] = ("shared", "request")


@pytest.fixture(params=SCOPES)
def book(request: pytest.FixtureRequest) -> EncoderCacheBook:
    return make_encoder_cache_manager(request.param, 10)


def can_allocate(book: EncoderCacheBook, request: Request, input_id: int = 0) -> bool:
    return book.can_allocate(request, input_id, encoder_compute_budget=1000, num_embeds_to_schedule=0)


def test_miss_allocate_hit(book: EncoderCacheBook) -> None:
    request = encode(1, ("a", 4))
    assert not book.has_cache(request, 0)
    assert not book.check_and_update_cache(request, 0)
    assert can_allocate(book, request)
    book.allocate(request, 0)
    assert book.has_cache(request, 0)
    assert book.check_and_update_cache(request, 0)
    assert book.get_cached_input_ids(request) == {0}
    assert (book.num_free_slots, book.num_freeable_slots) == (6, 6)
    assert book.holders() == {1}
    book.check_integrity()


def test_freeing_twice_or_what_is_not_held_changes_nothing(book: EncoderCacheBook) -> None:
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


def test_freeing_a_request_frees_all_its_items(book: EncoderCacheBook) -> None:
    request = encode(1, ("a", 4), ("b", 5))
    book.allocate(request, 0)
    book.allocate(request, 1)
    book.free(request)
    assert book.get_cached_input_ids(request) == set()
    assert book.num_freeable_slots == 10
    assert book.holders() == set()
    book.check_integrity()


def test_cached_ids_are_exactly_those_allocated(book: EncoderCacheBook) -> None:
    request = encode(1, ("a", 1), ("b", 1), ("c", 1))
    book.allocate(request, 0)
    book.allocate(request, 2)
    cached = book.get_cached_input_ids(request)
    assert cached == {0, 2}
    cached.clear()
    assert book.get_cached_input_ids(request) == {0, 2}


def test_space_and_compute_limit_what_may_be_allocated(book: EncoderCacheBook) -> None:
    request = encode(1, ("a", 5), ("b", 6))
    assert book.can_allocate(request, 0, 10, 0)
    assert not book.can_allocate(request, 1, 10, 5)  # 11 of 10 embeddings of space
    assert not book.can_allocate(request, 1, 5, 0)  # 6 of 5 embeddings of compute
    assert book.num_free_slots == 10


def test_allocating_what_is_there_or_does_not_fit_is_refused(book: EncoderCacheBook) -> None:
    request = encode(1, ("a", 4), ("b", 7))
    book.allocate(request, 0)
    for input_id in (0, 1):
        with pytest.raises(LocalProtocolError):
            book.allocate(request, input_id)
    assert (book.num_free_slots, book.num_freeable_slots) == (6, 6)
    book.check_integrity()


def test_reset_clears_everything(book: EncoderCacheBook) -> None:
    request = encode(1, ("a", 10))
    book.begin_step(0)
    book.allocate(request, 0)
    book.reset()
    assert (book.num_free_slots, book.num_freeable_slots) == (10, 10)
    assert not book.has_cache(request, 0)
    assert book.take_freed() == []
    other = encode(2, ("b", 10))
    book.begin_step(0)
    book.allocate(other, 0)
    book.commit(0)
    book.check_integrity()


# ---- steps


def test_what_a_step_reserves_is_ready_after_commit(book: EncoderCacheBook) -> None:
    request = encode(1, ("a", 4))
    book.begin_step(0)
    book.allocate(request, 0)
    (reserved,) = book.reserved_inputs()
    assert (reserved.key, reserved.request_id, reserved.input_id) == (book.entry_key(request, 0), 1, 0)
    assert book.has_cache(request, 0)
    book.commit(0)
    assert book.has_cache(request, 0)
    book.begin_step(1)
    assert book.reserved_inputs() == []
    book.check_integrity()


def test_a_withdrawn_reservation_leaves_nothing(book: EncoderCacheBook) -> None:
    request = encode(1, ("a", 4), ("b", 4))
    book.allocate(request, 0)
    book.begin_step(0)
    book.allocate(request, 1)
    key = book.entry_key(request, 1)
    book.withdraw(0)
    assert not book.has_cache(request, 1)
    assert book.get_cached_input_ids(request) == {0}
    assert book.num_free_slots == 6
    assert book.take_freed() == [key]  # a worker may have made it all the same
    book.check_integrity()


def test_a_reservation_given_up_in_its_step_leaves_nothing(book: EncoderCacheBook) -> None:
    request = encode(1, ("a", 4))
    book.begin_step(0)
    book.allocate(request, 0)
    book.free(request)
    assert book.reserved_inputs() == []
    assert not book.has_cache(request, 0)
    book.commit(0)
    assert not book.has_cache(request, 0)
    assert book.num_free_slots == 10
    book.check_integrity()


def test_freed_keys_are_told_once(book: EncoderCacheBook) -> None:
    request, other = encode(1, ("a", 6)), encode(2, ("b", 6))
    book.allocate(request, 0)
    book.free(request)
    book.begin_step(0)
    book.allocate(other, 0)
    assert book.take_freed() == [book.entry_key(request, 0)]
    assert book.take_freed() == []
    book.commit(0)
    assert book.take_freed() == []


def test_freed_keys_of_a_withdrawn_step_are_told_again(book: EncoderCacheBook) -> None:
    request, other = encode(1, ("a", 6)), encode(2, ("b", 6))
    book.allocate(request, 0)
    book.free(request)
    book.begin_step(0)
    book.allocate(other, 0)
    assert book.take_freed() == [book.entry_key(request, 0)]
    book.withdraw(0)
    assert book.take_freed() == [book.entry_key(request, 0), book.entry_key(other, 0)]


def test_freed_and_reserved_again_is_not_told(book: EncoderCacheBook) -> None:
    request, other = encode(1, ("a", 6)), encode(2, ("b", 6))
    book.allocate(request, 0)
    book.free(request)
    book.allocate(other, 0)  # now "a" is gone in both scopes
    book.free(other)
    book.begin_step(0)
    book.allocate(request, 0)
    assert book.take_freed() == [book.entry_key(other, 0)]
    assert [reserved.key for reserved in book.reserved_inputs()] == [book.entry_key(request, 0)]


def test_steps_do_not_overlap(book: EncoderCacheBook) -> None:
    with pytest.raises(LocalProtocolError):
        book.withdraw(0)
    book.begin_step(0)
    with pytest.raises(LocalProtocolError):
        book.begin_step(1)
    with pytest.raises(LocalProtocolError):
        book.commit(1)
    book.commit(0)


def test_queries_count_what_was_taken_up(book: EncoderCacheBook) -> None:
    request = encode(1, ("a", 4))
    book.has_cache(request, 0)
    book.check_and_update_cache(request, 0)
    book.allocate(request, 0)
    book.check_and_update_cache(request, 0)
    stats = book.stats()
    assert (stats.queries, stats.hits, stats.embeds_used, stats.embeds_total) == (1, 0, 4, 10)


ACTIONS = st.tuples(
    st.sampled_from(["take", "take", "free input", "free", "begin", "commit", "withdraw", "told", "reset"]),
    st.integers(0, 2),
    st.integers(0, 2),
)


@given(st.sampled_from(SCOPES), st.lists(ACTIONS, min_size=30, max_size=80))
def test_books_and_workers_agree_after_any_history(
    scope: EncoderCacheScope, history: list[tuple[str, int, int]]
) -> None:
    """A worker that does as it is told holds what the books call READY, and never more than fits."""
    book = make_encoder_cache_manager(scope, 10)
    requests = [
        encode(0, ("a", 4), ("b", 3), ("a", 4)),
        encode(1, ("b", 3), ("c", 6), ("d", 1)),
        encode(2, ("d", 1), ("a", 4), ("e", 10)),
    ]
    at_worker: dict[str, int] = {}
    step_id: int | None = None
    for position, (action, number, input_id) in enumerate(history):
        request = requests[number]
        match action:
            case "take" if step_id is not None and not book.check_and_update_cache(request, input_id):
                if can_allocate(book, request, input_id):
                    book.allocate(request, input_id)
            case "free input":
                book.free_encoder_input(request, input_id)
            case "free":
                book.free(request)
            case "begin" if step_id is None:
                step_id = position
                book.begin_step(step_id)
            case "commit" | "withdraw" if step_id is not None:
                for key in book.take_freed():
                    at_worker.pop(key, None)
                for reserved in book.reserved_inputs():
                    features = requests[reserved.request_id].features
                    assert book.entry_key(requests[reserved.request_id], reserved.input_id) == reserved.key
                    at_worker[reserved.key] = features[reserved.input_id].num_embeds
                assert sum(at_worker.values()) <= 10
                (book.commit if action == "commit" else book.withdraw)(step_id)
                step_id = None
            case "told" if step_id is None:
                for key in book.take_freed():
                    at_worker.pop(key, None)
            case "reset":
                book.reset()
                at_worker.clear()
                step_id = None
        book.check_integrity()
        reserved_keys = {reserved.key for reserved in book.reserved_inputs()}
        for holder in requests:
            for held in book.get_cached_input_ids(holder):
                assert book.entry_key(holder, held) in at_worker.keys() | reserved_keys
    for request in requests:
        book.free(request)
    assert book.num_freeable_slots == 10
