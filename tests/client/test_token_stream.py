"""TokenStream: each token is handed out once and in order, whatever comes and whenever it is taken."""

from __future__ import annotations

import pytest

from mmcached.client.results import Generation
from mmcached.client.token_stream import TokenStream
from mmcached.wire.errors import DeadlineExceeded, PeerGone, RemoteProtocolError, error_to_wire
from mmcached.wire.messages.client import Encoded, Failed, Generated, StreamedTokens
from mmcached.wire.messages.frontend import Generate, TokensTaken

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


def test_news_are_told() -> None:
    news: list[str] = []
    stream = TokenStream(Generate(CLIENT, 7, "x", 99, None, 5.0), lambda: news.append("news"))
    put(stream, 0, 1)
    stream.answer(answer(1), [])
    assert len(news) == 2
