"""A request's own arithmetic."""

from __future__ import annotations

import pytest

from mmcached.cache.checkpoints.answer_text import AnswerText
from mmcached.engine.steps.request import Request
from mmcached.wire.vocabulary import END_TOKEN_ID
from tests.engine.builders import generate, image


def test_tokens_are_prompt_and_output() -> None:
    request = generate(1, [5, 6], max_tokens=3)
    request.append_output_token(7)
    assert (request.num_prompt_tokens, request.num_tokens) == (2, 3)
    assert (request.token_ids, request.output_token_ids) == ([5, 6, 7], [7])


@pytest.mark.parametrize(
    ("prompt", "output", "reason"),
    [
        ([1], [], None),
        ([1, END_TOKEN_ID], [], None),  # an end token of the prompt ends nothing
        ([1], [2], None),
        ([1], [2, 3], "length"),
        ([1], [END_TOKEN_ID], "stop"),
        ([1], [2, END_TOKEN_ID], "stop"),
    ],
)
def test_reason_to_finish(prompt: list[int], output: list[int], reason: str | None) -> None:
    request = generate(1, prompt, max_tokens=2)
    for token_id in output:
        request.append_output_token(token_id)
    assert request.reason_to_finish() == reason
    assert not request.is_finished


def test_features_in_a_range_are_those_that_overlap_it() -> None:
    request = generate(1, 20, [image("a", 2, 3), image("b", 5, 5), image("c", 15, 2)])

    def found(start: int, end: int) -> list[int]:
        return [index for index, _ in request.features_in(start, end)]

    assert found(0, 2) == []
    assert found(0, 3) == [0]
    assert found(4, 6) == [0, 1]
    assert found(5, 20) == [1, 2]
    assert found(10, 15) == []
    assert found(17, 20) == []


def test_a_stop_string_ends_a_generation_with_the_token_that_completes_it() -> None:
    text = AnswerText(lambda ids: bytes(ids).decode(errors="replace"), ["é!"])
    request = Request(1, "generate", [33], [], max_tokens=9, text=text)
    reasons = []
    for token_id in "xé!".encode():
        request.append_output_token(token_id)
        reasons.append(request.reason_to_finish())
    assert reasons == [None, None, None, "stop"]
