"""Answers: rows and items are gathered exactly once, in order, and never made up."""

from __future__ import annotations

import struct

import pytest

from mmcached.engine.answers import Answers
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.engine import HiddenRows, ItemEmbedding
from mmcached.wire.messages.parts import Tensor


def rows(first: int, values: list[int]) -> tuple[HiddenRows, list[bytes]]:
    return HiddenRows(7, first, Tensor(0, "int32", (len(values), 1))), [struct.pack(f"<{len(values)}i", *values)]


def values_of(data: bytes | bytearray) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def test_rows_of_several_steps_are_joined() -> None:
    answers = Answers()
    for first, values in ((0, [1, 2]), (2, [3]), (3, [4, 5])):
        answers.put_hidden(*rows(first, values))
    answer = answers.take_hidden(7, 5)
    assert values_of(answer.data) == [1, 2, 3, 4, 5]
    assert answer.tensor(0) == Tensor(0, "int32", (5, 1))


def test_resumed_request_replaces_what_it_computes_again() -> None:
    answers = Answers()
    answers.put_hidden(*rows(0, [1, 2, 3, 4]))
    answers.put_hidden(*rows(0, [1, 2]))
    answers.put_hidden(*rows(2, [3, 4, 5]))
    assert values_of(answers.take_hidden(7, 5).data) == [1, 2, 3, 4, 5]


def test_gap_is_an_invariant_error() -> None:
    answers = Answers()
    answers.put_hidden(*rows(0, [1]))
    with pytest.raises(InvariantError, match="only 1"):
        answers.put_hidden(*rows(2, [3]))


def test_too_few_rows_are_not_filled_up() -> None:
    answers = Answers()
    answers.put_hidden(*rows(0, [1]))
    with pytest.raises(InvariantError, match="expected 2"):
        answers.take_hidden(7, 2)


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
    answers.put_hidden(*rows(0, [1]))
    answers.forget(7)
    answers.forget(7)
    assert answers.take_hidden(7, 0).num_rows == 0
