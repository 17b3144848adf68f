"""Items of one content and another number of embeddings are refused; test_encoder_model compares all else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.engine import Request, SharedEncoderCacheManager
from mmcached.engine.encoder.encoder_inputs import EncoderStepBudget
from mmcached.wire.errors import InvalidRequest
from tests.engine.builders import encode

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
    with pytest.raises(InvalidRequest, match=r"features\[0\].num_embeds = 4: an item with the same content has 3"):
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
