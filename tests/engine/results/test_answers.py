"""Answers: rows and items are gathered exactly once, in order, and never made up."""

from __future__ import annotations

import struct

import pytest

from mmcached.engine import Request
from mmcached.engine.results.answers import Answers
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.engine import ItemEmbedding
from mmcached.wire.messages.parts import Rows, RowsWanted, Tensor
from mmcached.wire.sockets.channels import Frame

ALL = RowsWanted()


def put(answers: Answers, first: int, values: list[int], key: str = "hidden_states") -> None:
    tensor = Tensor(1, "int32", (len(values), 1))
    answers.put_rows(7, Rows(key, first, tensor), [b"other", struct.pack(f"<{len(values)}i", *values)])


def request(num_tokens: int, wanted: RowsWanted | None = ALL) -> Request:
    """A request with so many tokens in all; the last one has no row."""
    return Request(7, "generate", list(range(num_tokens)), [], max_tokens=9, rows=wanted)


def values_of(data: Frame) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def test_rows_of_several_steps_are_joined() -> None:
    answers = Answers()
    for first, values in ((0, [1, 2]), (2, [3]), (3, [4, 5])):
        put(answers, first, values)
    [rows], [data] = answers.take_rows(request(6))
    assert rows == Rows("hidden_states", 0, Tensor(0, "int32", (5, 1)))
    assert values_of(data) == [1, 2, 3, 4, 5]


def test_each_key_has_its_own_rows_and_they_come_in_the_order_in_which_they_were_asked_for() -> None:
    answers = Answers()
    put(answers, 0, [1, 2], "b")
    put(answers, 0, [3, 4], "a")
    rows, frames = answers.take_rows(request(3, RowsWanted(["a", "b"])))
    assert [(part.key, part.tensor.frame) for part in rows] == [("a", 0), ("b", 1)]
    assert [values_of(frame) for frame in frames] == [[3, 4], [1, 2]]


def test_rows_from_a_position_on() -> None:
    answers = Answers()
    put(answers, 3, [4, 5])
    [rows], [data] = answers.take_rows(request(6, RowsWanted(first=3, delivery="delta")))
    assert (rows.first, rows.tensor.shape, values_of(data)) == (3, (2, 1), [4, 5])


def test_what_comes_again_is_left_out() -> None:
    answers = Answers()
    put(answers, 0, [1, 2, 3, 4])
    put(answers, 0, [1, 2])
    put(answers, 2, [3, 4, 5])
    assert values_of(answers.take_rows(request(6))[1][0]) == [1, 2, 3, 4, 5]


def test_gap_is_an_invariant_error() -> None:
    answers = Answers()
    put(answers, 0, [1])
    with pytest.raises(InvariantError, match=r"request 7: rows \[1, 2\)"):
        put(answers, 2, [3])
    with pytest.raises(InvariantError, match=r"rows \[0, 1\) of 'b'"):
        put(answers, 1, [3], "b")


@pytest.mark.parametrize("wanted", [ALL, RowsWanted(["other"]), RowsWanted(first=1, delivery="delta")])
def test_rows_that_did_not_come_are_not_filled_up(wanted: RowsWanted) -> None:
    answers = Answers()
    put(answers, 0, [1])
    with pytest.raises(InvariantError, match="expected"):
        answers.take_rows(request(3, wanted))


DELTA = RowsWanted(["a", "b"], 3, "delta")


def told(answers: Answers, *request_ids: int) -> list[tuple[int, str, int, list[int]]]:
    """Hand on what was not; return it."""
    parts, frames = answers.untold_rows(request_ids)
    assert answers.untold_rows(request_ids) == (parts, frames), "that alone changes nothing"
    answers.rows_told(parts)
    named = [(part.request_id, part.rows.key, part.rows.first, part.rows.tensor) for part in parts]
    assert all(tensor.shape == (len(frames[tensor.frame]) // 4, 1) for *_, tensor in named)
    return [(number, key, first, values_of(frames[tensor.frame])) for number, key, first, tensor in named]


def test_rows_that_are_streamed_are_handed_on_once_and_the_answer_has_the_rest() -> None:
    answers = Answers()
    answers.stream_rows(7)
    for key in DELTA.keys:
        put(answers, 3, [4, 5], key)
    assert told(answers, 7, 8) == [(7, "a", 3, [4, 5]), (7, "b", 3, [4, 5])]
    assert told(answers, 7) == []
    put(answers, 4, [5, 6], "a")  # as after a resumption
    assert told(answers, 7) == [(7, "a", 5, [6])]
    put(answers, 5, [6, 7], "b")
    put(answers, 6, [7], "a")
    rows, frames = answers.take_rows(request(8, DELTA))
    assert [(part.key, part.first, values_of(frames[part.tensor.frame])) for part in rows] == [
        ("a", 6, [7]),
        ("b", 5, [6, 7]),
    ]


def test_rows_that_were_not_queued_come_with_the_next() -> None:
    answers = Answers()
    answers.stream_rows(7)
    put(answers, 0, [1])
    answers.untold_rows([7])
    put(answers, 1, [2])
    assert told(answers, 7) == [(7, "hidden_states", 0, [1, 2])]


def test_an_answer_may_have_no_rows_left() -> None:
    answers = Answers()
    answers.stream_rows(7)
    put(answers, 0, [1, 2])
    told(answers, 7)
    [rows], [data] = answers.take_rows(request(3, RowsWanted(delivery="delta")))
    assert (rows, data) == (Rows("hidden_states", 2, Tensor(0, "int32", (0, 1))), b"")


def test_rows_that_were_handed_on_must_have_been_those_that_are_wanted() -> None:
    answers = Answers()
    answers.stream_rows(7)
    put(answers, 4, [1, 2])
    told(answers, 7)
    with pytest.raises(InvariantError, match="expected 3 to 6"):
        answers.take_rows(request(7, RowsWanted(first=3, delivery="delta")))


def test_rows_of_who_wants_them_with_the_answer_are_not_handed_on() -> None:
    answers = Answers()
    put(answers, 0, [1])
    assert told(answers, 7) == []
    assert values_of(answers.take_rows(request(2))[1][0]) == [1]


def test_who_wants_no_rows_gets_none() -> None:
    assert Answers().take_rows(request(3, None)) == ([], [])


def test_embeddings_come_in_item_order_and_complete() -> None:
    answers = Answers()
    answers.put_embedding(ItemEmbedding(7, 1, Tensor(0, "int32", (1, 1))), [b"bbbb"])
    with pytest.raises(InvariantError):
        answers.take_embeddings(7, 2)
    answers.put_embedding(ItemEmbedding(7, 1, Tensor(0, "int32", (1, 1))), [b"bbbb"])
    answers.put_embedding(ItemEmbedding(7, 0, Tensor(1, "int32", (1, 1))), [b"xxxx", b"aaaa"])
    tensors, frames = answers.take_embeddings(7, 2)
    assert frames == [b"aaaa", b"bbbb"]
    assert [tensor.frame for tensor in tensors] == [0, 1]


def test_forget_drops_what_was_gathered() -> None:
    answers = Answers()
    put(answers, 0, [1])
    answers.stream_rows(7)
    answers.forget(7)
    answers.forget(7)
    put(answers, 0, [2])
    assert told(answers, 7) == []
    assert values_of(answers.take_rows(request(2))[1][0]) == [2]
