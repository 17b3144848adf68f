"""TokenStream: each token and each row is handed out once and in order, whatever comes and whenever it is taken."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
import torch

from mmcached.client.results import Generation, NewTokens, Piece, RowRange
from mmcached.client.token_stream import TokenStream
from mmcached.wire.errors import DeadlineExceeded, PeerGone, RemoteProtocolError, error_to_wire
from mmcached.wire.messages.client import Encoded, Failed, Generated
from mmcached.wire.messages.frontend import Generate, TokensTaken
from mmcached.wire.messages.parts import RequestRows, Rows, RowsWanted, StreamedTokens, Tensor

CLIENT = "c" * 32


def open_stream(window: int = 4) -> TokenStream:
    return TokenStream(Generate(CLIENT, 7, "x", 99, None, 5.0, stream_window=window))


def answer(*token_ids: int) -> Generated:
    return Generated(7, list(token_ids), "length", 3, 0)


def put(stream: TokenStream, first: int, *token_ids: int) -> None:
    stream.put(StreamedTokens(7, first, list(token_ids)))


def test_tokens_come_once_and_the_answer_brings_the_rest_and_then_itself() -> None:
    stream = open_stream()
    assert not stream.has_news
    put(stream, 0, 1, 2)
    put(stream, 2, 3)
    assert stream.take() == [1, 2, 3]
    assert not stream.has_news
    put(stream, 1, 2, 3, 4)  # some of it has come before
    stream.answer(answer(1, 2, 3, 4, 5), [])
    assert stream.take() == [4, 5]
    assert stream.has_news
    generation = stream.take()
    assert isinstance(generation, Generation)
    assert generation.tokens == [1, 2, 3, 4, 5]


def test_texts_of_pieces_joined_are_the_text_of_the_answer() -> None:
    stream = open_stream()
    stream.put(StreamedTokens(7, 0, [1, 2], "a"))
    stream.put(StreamedTokens(7, 2, [3], "bc"))
    piece = stream.take()
    assert isinstance(piece, NewTokens)
    assert (piece, piece.text) == ([1, 2, 3], "abc")
    stream.answer(Generated(7, [1, 2, 3], "stop", 3, 0, text="abcd"), [])
    piece = stream.take()
    assert isinstance(piece, NewTokens)
    assert (piece, piece.text) == ([], "d"), "held back until the end"
    generation = stream.take()
    assert isinstance(generation, Generation)
    assert generation.text == "abcd"


def test_an_answer_with_another_text_is_an_error() -> None:
    stream = open_stream()
    stream.put(StreamedTokens(7, 0, [1], "a"))
    stream.answer(Generated(7, [1], "stop", 3, 0, text="b"), [])
    stream.take()
    with pytest.raises(RemoteProtocolError, match="another text"):
        stream.take()


def test_an_answer_alone_is_a_stream_too() -> None:
    stream = open_stream()
    stream.answer(answer(1), [])
    assert stream.take() == [1]
    assert isinstance(stream.take(), Generation)
    stream = open_stream()
    stream.answer(answer(), [])
    assert isinstance(stream.take(), Generation)


def test_what_came_before_an_error_is_handed_out_before_it() -> None:
    stream = open_stream()
    put(stream, 0, 1)
    stream.answer(Failed(7, error_to_wire(DeadlineExceeded("generate", 5.0))), [])
    stream.fail(PeerGone("later, and no news"))
    put(stream, 1, 2)
    assert stream.take() == [1]
    with pytest.raises(DeadlineExceeded):
        stream.take()
    assert not stream.is_open


def test_a_gap_is_an_error_and_the_service_is_to_end_it() -> None:
    stream = open_stream()
    put(stream, 0, 1)
    put(stream, 2, 3)
    assert stream.take() == [1]
    with pytest.raises(RemoteProtocolError, match="tokens from 2 on"):
        stream.take()
    assert stream.is_open


def test_an_answer_that_contradicts_what_came_is_an_error() -> None:
    for other in (answer(1, 9, 3), answer(1), Encoded(7, [])):
        stream = open_stream()
        put(stream, 0, 1, 2)
        stream.answer(other, [])
        assert stream.take() == [1, 2]
        with pytest.raises(RemoteProtocolError):
            stream.take()
        assert not stream.is_open


def test_receipts_are_given_for_half_a_window_and_none_at_the_end() -> None:
    stream = open_stream(window=4)
    put(stream, 0, 1)
    stream.take()
    assert stream.take_receipt() is None
    put(stream, 1, 2)
    assert stream.take_receipt() is None, "not before they are taken"
    stream.take()
    assert stream.take_receipt() == TokensTaken(CLIENT, 7, 2)
    assert stream.take_receipt() is None
    put(stream, 2, 3, 4, 5, 6)
    stream.take()
    assert stream.take_receipt() == TokensTaken(CLIENT, 7, 6)
    stream.answer(answer(1, 2, 3, 4, 5, 6, 7, 8, 9), [])
    stream.take()
    assert stream.take_receipt() is None


# ---- rows

DELTA = RowsWanted(["a", "b"], 3, "delta")
ROW_WINDOW = 16
"""Four rows of width 1."""


def open_row_stream(wanted: RowsWanted = DELTA) -> TokenStream:
    request = Generate(CLIENT, 7, "x", 99, wanted, 5.0, stream_window=4)
    return TokenStream(request, row_window_bytes=ROW_WINDOW)


def packed(key: str, first: int, values: Sequence[int], frame: int = 0) -> tuple[Rows, bytes]:
    return Rows(key, first, Tensor(frame, "int32", (len(values), 1))), struct.pack(f"<{len(values)}i", *values)


def put_rows(stream: TokenStream, key: str, first: int, *values: int) -> None:
    rows, data = packed(key, first, values, 1)
    stream.put_rows(RequestRows(7, rows), [b"other", data])


def answer_with(stream: TokenStream, *parts: tuple[str, int, list[int]]) -> None:
    found = [packed(*part, frame) for frame, part in enumerate(parts)]
    stream.answer(
        Generated(7, [1], "length", 3, 0, [rows for rows, _ in found]),
        [data for _, data in found],
    )


def spelt(piece: Piece) -> object:
    """Return a piece in plain words; of a generation its rows."""
    if isinstance(piece, RowRange):
        assert piece.tensor.dtype == torch.int32
        assert piece.end == piece.first + len(piece.tensor)
        return piece.key, piece.first, piece.tensor.flatten().tolist()
    if isinstance(piece, Generation):
        return [spelt(rows) for rows in piece.rows.values()]
    return piece


def test_rows_are_taken_before_the_tokens_each_key_in_one_piece_and_the_generation_has_the_rest() -> None:
    stream = open_row_stream()
    put_rows(stream, "a", 3, 13)
    put_rows(stream, "b", 3, 23)
    put(stream, 0, 1)
    put_rows(stream, "a", 3, 13, 14)  # the first has come before
    assert [spelt(stream.take()) for _ in range(3)] == [("a", 3, [13, 14]), ("b", 3, [23]), [1]]
    assert not stream.has_news
    put_rows(stream, "b", 4, 24)
    answer_with(stream, ("a", 4, [14, 15]), ("b", 5, []))
    assert [spelt(stream.take()) for _ in range(2)] == [("b", 4, [24]), [("a", 5, [15]), ("b", 5, [])]]
    assert stream.take_receipt() is None


def test_an_answer_alone_has_all_rows() -> None:
    stream = open_row_stream(RowsWanted(["a"], 3, "delta"))
    answer_with(stream, ("a", 3, [13, 14]))
    assert [spelt(stream.take()) for _ in range(2)] == [[1], [("a", 3, [13, 14])]]
    stream = open_row_stream(RowsWanted(["a"]))
    answer_with(stream, ("a", 0, [13, 14]))
    assert [spelt(stream.take()) for _ in range(2)] == [[1], [("a", 0, [13, 14])]]


@pytest.mark.parametrize(("key", "first"), [("a", 5), ("b", 4), ("c", 3)])
def test_a_gap_in_the_rows_or_a_key_that_nobody_wants_is_an_error(key: str, first: int) -> None:
    stream = open_row_stream()
    put_rows(stream, "a", 3, 13)
    put_rows(stream, key, first, 99)
    put_rows(stream, "a", 4, 14)
    assert spelt(stream.take()) == ("a", 3, [13])
    with pytest.raises(RemoteProtocolError, match="rows of"):
        stream.take()
    assert stream.is_open, "the service is to end it"


def test_an_answer_whose_rows_do_not_follow_or_are_not_there_is_an_error() -> None:
    for parts in ([("a", 5, [15]), ("b", 3, [23])], [("a", 4, [14])], [("a", 4, [14]), ("c", 3, [23])]):
        stream = open_row_stream()
        put_rows(stream, "a", 3, 13)
        answer_with(stream, *parts)
        assert spelt(stream.take()) == ("a", 3, [13])
        with pytest.raises(RemoteProtocolError):
            stream.take()
        assert not stream.is_open


def test_receipts_are_given_for_half_a_window_of_rows_that_were_taken() -> None:
    stream = open_row_stream()
    put_rows(stream, "a", 3, 13)
    stream.take()
    assert stream.take_receipt() is None
    put_rows(stream, "b", 3, 23)
    assert stream.take_receipt() is None, "not before they are taken"
    stream.take()
    assert stream.take_receipt() == TokensTaken(CLIENT, 7, 0, 8)
    assert stream.take_receipt() is None
    put_rows(stream, "a", 4, *range(9))
    put(stream, 0, 1)
    stream.take()
    stream.take()
    assert stream.take_receipt() == TokensTaken(CLIENT, 7, 1, 44)
