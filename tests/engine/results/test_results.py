"""Results: tokens, rows and items are gathered and sent exactly once, in order, and never made up."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from mmcached.engine import Request
from mmcached.engine.results.results import Results
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.engine import ItemEmbedding, ItemSaved, RowsMissing, Sampled, StepOutput
from mmcached.wire.messages.frontend_from_engines import RequestEncoded, RequestGenerated
from mmcached.wire.messages.parts import Rows, RowsWanted, StreamedTokens, Tensor, TokenLogprob
from mmcached.wire.sockets.frames import Frame
from tests.engine.builders import encode, generate, inline_tensors

Sent = tuple[int, str, int, list[int]]
"""Request, key, first position, values."""

DELTA = RowsWanted(["a", "b"], 3, "delta")


def rows_request(num_tokens: int, wanted: RowsWanted | None) -> Request:
    """Return request 7 with so many tokens in all; the last one has no row."""
    return Request(7, "generate", list(range(num_tokens)), [], max_tokens=9, rows=wanted)


def results_of(*requests: Request, is_streamed: bool = True) -> Results:
    results = Results()
    for request in requests:
        results.open(request, is_streamed=is_streamed)
    return results


def put(results: Results, first: int, values: list[int], key: str = "hidden_states") -> None:
    tensor = Tensor(1, "int32", (len(values), 1))
    results.put_rows(7, Rows(key, first, tensor), [b"other", struct.pack(f"<{len(values)}i", *values)])


def values_of(data: Frame) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def answered(results: Results, request: Request) -> list[tuple[str, int, list[int]]]:
    """Return the rows of an answer: key, first position, values; frames are in their order."""
    answer, frames = results.take_answer(request)
    assert isinstance(answer, RequestGenerated)
    assert [part.tensor.frame for part in answer.rows] == list(range(len(frames)))
    assert all(part.tensor.dtype in ("int32", "") for part in answer.rows)
    values = [values_of(frame) for frame in frames]
    assert [part.tensor.shape for part in answer.rows] == [(len(each), 1) for each in values if each] + [
        part.tensor.shape for part in answer.rows if not part.tensor.shape[0]
    ]
    return [(part.key, part.first, each) for part, each in zip(answer.rows, values, strict=True)]


def sent(results: Results, *request_ids: int) -> list[Sent]:
    """Send the rows that were not; return them."""
    message, frames = results.unsent((), request_ids)
    assert results.unsent((), request_ids) == (message, frames), "asking alone changes nothing"
    results.mark_sent(message)
    assert not message.streams
    parts = [(part.request_id, part.rows) for part in message.rows]
    return [(number, rows.key, rows.first, values_of(frames[rows.tensor.frame])) for number, rows in parts]


# ---- rows with the answer


@pytest.mark.parametrize(
    ("pieces", "wanted", "num_tokens", "expected"),
    [
        ([(0, [1, 2]), (2, [3]), (3, [4, 5])], RowsWanted(), 6, (0, [1, 2, 3, 4, 5])),
        ([(3, [4, 5])], RowsWanted(first=3, delivery="delta"), 6, (3, [4, 5])),
        ([(0, [1, 2, 3, 4]), (0, [1, 2]), (2, [3, 4, 5])], RowsWanted(), 6, (0, [1, 2, 3, 4, 5])),
    ],
    ids=["several steps", "from a position on", "what comes again is left out"],
)
def test_rows_are_joined(
    pieces: list[tuple[int, list[int]]], wanted: RowsWanted, num_tokens: int, expected: tuple[int, list[int]]
) -> None:
    request = rows_request(num_tokens, wanted)
    results = results_of(request, is_streamed=False)
    for first, values in pieces:
        put(results, first, values)
    assert sent(results, 7) == []
    assert answered(results, request) == [("hidden_states", *expected)]
    assert len(results) == 0


def test_each_key_has_its_own_rows_and_they_come_in_the_order_in_which_they_were_asked_for() -> None:
    request = rows_request(3, RowsWanted(["a", "b"]))
    results = results_of(request)
    put(results, 0, [1, 2], "b")
    put(results, 0, [3, 4], "a")
    assert answered(results, request) == [("a", 0, [3, 4]), ("b", 0, [1, 2])]


def test_gap_is_an_invariant_error() -> None:
    results = results_of(rows_request(6, RowsWanted()))
    put(results, 0, [1])
    with pytest.raises(InvariantError, match=r"request 7: rows \[1, 2\)"):
        put(results, 2, [3])
    with pytest.raises(InvariantError, match=r"rows \[0, 1\) of 'b'"):
        put(results, 1, [3], "b")


@pytest.mark.parametrize("wanted", [RowsWanted(), RowsWanted(["other"]), RowsWanted(first=1, delivery="delta")])
def test_rows_that_did_not_come_are_not_filled_up(wanted: RowsWanted) -> None:
    request = rows_request(3, wanted)
    results = results_of(request)
    put(results, 0, [1])
    with pytest.raises(InvariantError, match="expected"):
        results.take_answer(request)


# ---- rows as they come


def test_rows_that_are_streamed_are_sent_once_and_the_answer_has_the_rest() -> None:
    request = rows_request(8, DELTA)
    results = results_of(request)
    for key in DELTA.keys:
        put(results, 3, [4, 5], key)
    assert sent(results, 7, 8) == [(7, "a", 3, [4, 5]), (7, "b", 3, [4, 5])]
    assert sent(results, 7) == []
    put(results, 4, [5, 6], "a")  # as after a resumption
    assert sent(results, 7) == [(7, "a", 5, [6])]
    put(results, 5, [6, 7], "b")
    put(results, 6, [7], "a")
    assert answered(results, request) == [("a", 6, [7]), ("b", 5, [6, 7])]


# ---- embeddings


def test_embeddings_come_in_item_order_and_complete() -> None:
    request = encode(7, ("a", 1), ("b", 1))
    for indexes in ([1], [1, 0]):
        results = results_of(request)
        for index in indexes:
            payload = [b"xxxx", b"aaaa", b"bbbb"]
            results.put_embedding(ItemEmbedding(7, index, "embeddings", Tensor(index + 1, "int32", (1, 1))), payload)
        if len(indexes) == 1:
            with pytest.raises(InvariantError):
                results.take_answer(request)
            continue
        answer, frames = results.take_answer(request)
        assert isinstance(answer, RequestEncoded)
        assert frames == [b"aaaa", b"bbbb"]
        assert [inline_tensors(outputs)["embeddings"].frame for outputs in answer.outputs] == [0, 1]


def test_an_item_that_is_saved_is_named_in_its_place() -> None:
    request = encode(7, ("a", 1), ("b", 1))
    results = results_of(request)
    results.put_embedding(ItemEmbedding(7, 1, "embeddings", Tensor(0, "int32", (1, 1))), [b"bbbb"])
    saved = [ItemSaved(7, 0, "encoder/f/a"), ItemSaved(99, 0, "of nobody")]
    results.gather(StepOutput(5, 6, 7, b"", [], [], [], [], saved=saved), [])
    answer, frames = results.take_answer(request)
    assert isinstance(answer, RequestEncoded)
    assert answer.outputs == ["encoder/f/a", {"embeddings": Tensor(0, "int32", (1, 1))}]
    assert frames == [b"bbbb"]


# ---- tokens


def unsent_tokens(results: Results, requests: Sequence[Request]) -> list[StreamedTokens]:
    return results.unsent(requests, ())[0].streams


def test_one_message_tells_of_all_streamed_generations_and_of_no_other() -> None:
    requests = [generate(request_id, 5, max_tokens=9) for request_id in (1, 2, 3)]
    results = Results()
    assert not results.has_streams
    for request in requests:
        request.append_output_token(70 + request.request_id)
        results.open(request, is_streamed=request.request_id != 2)
    assert unsent_tokens(results, requests) == [StreamedTokens(1, 0, [71]), StreamedTokens(3, 0, [73])]


def test_tokens_that_were_not_queued_come_with_the_next_step_and_those_that_were_never_again() -> None:
    request = generate(1, 5, max_tokens=9)
    results = results_of(request)
    for token in (7, 8):
        request.append_output_token(token)
        unsent = unsent_tokens(results, [request])
    assert unsent == [StreamedTokens(1, 0, [7, 8])]
    results.mark_sent(results.unsent([request], ())[0])
    assert unsent_tokens(results, [request]) == [], "as of who was set back in its step"
    request.num_computed_tokens = 0  # preempted: it is computed again, and has its tokens
    request.append_output_token(9)
    assert unsent_tokens(results, [request]) == [StreamedTokens(1, 2, [9])]


def test_nothing_is_kept_of_those_that_are_over_and_nothing_taken_for_those_that_are_not_open() -> None:
    request = rows_request(2, RowsWanted(delivery="delta"))
    results = results_of(request)
    put(results, 0, [1])
    for _ in range(2):
        results.forget_request(7)
    assert (len(results), results.has_streams) == (0, False)
    put(results, 0, [2])
    results.put_embedding(ItemEmbedding(7, 0, "embeddings", Tensor(0, "int32", (1, 1))), [b"aaaa"])
    assert unsent_tokens(results, [request]) == []
    assert sent(results, 7) == []
    results.open(request, is_streamed=False)
    put(results, 0, [3])
    assert answered(results, request) == [("hidden_states", 0, [3])]


def test_logprobs_come_with_the_answer_once_for_each_token() -> None:
    request = generate(7, 4, max_tokens=3)
    results = results_of(request)
    for step, is_set_back in enumerate((False, True, False)):
        logprobs = [TokenLogprob(step, -0.5), TokenLogprob(9, -0.25)]
        missing = [RowsMissing(7, "a", 0, 1)] if is_set_back else []  # it is sampled again
        sampled = [Sampled(7, step, logprobs), Sampled(8, 1, logprobs)]
        results.gather(StepOutput(1, 2, step, b"", sampled, [], [], missing=missing), [])
    answer, _ = results.take_answer(request)
    assert isinstance(answer, RequestGenerated)
    assert [[each.token_id for each in best] for best in answer.logprobs] == [[0, 9], [2, 9]]
