"""`generate_stream` of both clients against a service that says what a test tells it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import AsyncClient, Client, Generation
from mmcached.client.links.conversation import STREAM_WINDOW
from mmcached.client.results import Piece
from mmcached.wire.errors import (
    CorruptImage,
    DeadlineExceeded,
    InvalidRequest,
    PeerGone,
    RemoteProtocolError,
    RequestAborted,
    error_to_wire,
)
from mmcached.wire.messages.client import Failed, Generated, StreamedTokens, ToClient, Tokens
from mmcached.wire.messages.frontend import Cancel, FromClient, Generate, TokensTaken
from tests.client.blocking import CLIENTS, BlockingAsync, Make
from tests.client.fake_service import fake_service
from tests.integration.processes import eventually


def pieces_of(client: Any, *values: Any, **named: Any) -> Iterator[Piece]:
    """Iterate over a stream of either client; closing it closes that."""
    stream = client.generate_stream(*values, **named)
    if not isinstance(client, BlockingAsync):
        return stream  # type: ignore[no-any-return]

    def blocking(stream: AsyncGenerator[Piece]) -> Iterator[Piece]:
        try:
            while True:
                yield client._runner.run(anext(stream))
        except StopAsyncIteration:
            return
        finally:
            client._runner.run(stream.aclose())

    return blocking(stream)


def tokens_in(pieces: Iterable[Piece]) -> list[int]:
    """Return the tokens of all lists."""
    return [token for piece in pieces if isinstance(piece, list) for token in piece]


def tokens(request_id: int, first: int, *token_ids: int) -> Tokens:
    return Tokens([StreamedTokens(request_id, first, list(token_ids))])


def spell(message: FromClient) -> list[ToClient]:
    """Answer a generation with the letters of its prompt: one by one if it is streamed, the last with the answer."""
    if not isinstance(message, Generate):
        return []
    assert isinstance(message.prompt, str)
    letters = list(message.prompt.encode())
    streamed = letters[:-1] if message.stream_window else []
    parts = [tokens(message.request_id, first, letter) for first, letter in enumerate(streamed)]
    return [tokens(message.request_id + 99, 0, 1), *parts, Generated(message.request_id, letters, "length", 3, 0)]


def hesitate(message: FromClient) -> list[ToClient]:
    """Say two tokens, and then nothing."""
    return [tokens(message.request_id, 0, 1, 2)] if isinstance(message, Generate) and message.stream_window else []


def has_no_streams(client: Any) -> bool:
    link = client._link if isinstance(client, BlockingAsync) else client._incarnation._link
    return not (link._streams if isinstance(client, BlockingAsync) else link._open)


def asked_of(received: list[FromClient]) -> Generate:
    return next(message for message in received if isinstance(message, Generate))


@pytest.fixture(params=list(CLIENTS.values()), ids=list(CLIENTS))
def make(request: pytest.FixtureRequest) -> Make:
    return request.param  # type: ignore[no-any-return]


def test_tokens_come_once_in_order_and_then_the_generation(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, spell) as received, make(run_dir) as client:
        *pieces, generation = pieces_of(client, "letters", max_tokens=7, timeout_s=9.0)
        assert isinstance(generation, Generation)
        assert tokens_in(pieces) == generation.tokens == list(b"letters")
        assert [] not in pieces
        asked = asked_of(received)
        assert (asked.max_tokens, asked.timeout_s, asked.stream_window) == (7, 9.0, STREAM_WINDOW)
        assert client.generate("plain", priority=-7).text == "plain"
        assert (received[-1].stream_window, received[-1].priority) == (0, -7)  # type: ignore[union-attr]
        with pytest.raises(InvalidRequest, match="priority"):
            client.generate("plain", priority=1 << 31)
        assert has_no_streams(client)


def test_errors_are_those_of_generate(run_dir: Path, make: Make) -> None:
    def refuse(message: FromClient) -> list[ToClient]:
        error = error_to_wire(CorruptImage("images[0]", "cat.png", "no image"))
        return [Failed(message.request_id, error)] if isinstance(message, Generate) else []

    with fake_service(run_dir, refuse) as received, make(run_dir) as client:
        for bad in ({"timeout_s": -1.0}, {"images": [None]}, {"images": [b""], "image_ids": ["a", "b"]}):
            with pytest.raises(InvalidRequest):
                client.generate_stream("x", **bad)  # at once, without a step
        assert not [message for message in received if isinstance(message, Generate)]
        with pytest.raises(CorruptImage) as caught:
            list(pieces_of(client, "x"))
        assert caught.value.details["value"] == "cat.png"
        assert not [message for message in received if isinstance(message, Cancel)], "the service has ended it"


def test_nothing_is_asked_before_the_first_step(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, spell) as received:
        with make(run_dir) as client:
            pieces = pieces_of(client, "never")
            del pieces
            gc.collect()
        assert not [message for message in received if isinstance(message, Generate)]


@pytest.mark.parametrize("how", ["close", "drop", "error"])
def test_whoever_stops_early_ends_it_in_the_service(run_dir: Path, make: Make, how: str) -> None:
    with fake_service(run_dir, hesitate) as received, make(run_dir) as client:
        pieces = pieces_of(client, "x")
        assert next(pieces) == [1, 2]
        match how:
            case "close":
                pieces.close()  # type: ignore[attr-defined]
            case "drop":
                del pieces
            case "error":
                with pytest.raises(ZeroDivisionError):
                    pieces.throw(ZeroDivisionError())  # type: ignore[attr-defined]
        asked = asked_of(received)
        wanted = Cancel(asked.client_id, asked.request_id)
        eventually(lambda: received[-1], lambda last: last == wanted, "the last word")
        assert has_no_streams(client)


def test_silence_is_a_deadline_and_ends_it_in_the_service(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, hesitate) as received, make(run_dir) as client:
        pieces = pieces_of(client, "x", timeout_s=0.05)
        assert next(pieces) == [1, 2]
        with pytest.raises(DeadlineExceeded) as caught:
            next(pieces)
        assert caught.value.details == {"operation": "generate", "timeout_s": 0.05}
        eventually(lambda: received[-1], lambda last: isinstance(last, Cancel), "the last word")


def test_a_slow_caller_gets_what_has_come_after_its_deadline_too(run_dir: Path, make: Make) -> None:
    """The service has done its part; the deadline is on waiting for it. All that has come meanwhile is one list."""
    is_busy, is_said = threading.Event(), threading.Event()

    def spell_in_two(message: FromClient) -> Iterator[ToClient]:
        for index, part in enumerate(spell(message)):
            if index == 2:
                assert is_busy.wait(30)
            yield part
        is_said.set()

    with fake_service(run_dir, spell_in_two), make(run_dir) as client:  # type: ignore[arg-type]
        pieces = pieces_of(client, "slow", timeout_s=0.02)
        taken = [next(pieces)]
        is_busy.set()
        assert is_said.wait(30)
        threading.Event().wait(0.1)  # the caller's own work: longer than deadline and grace
        taken += list(pieces)
    assert taken[:-1] == [list(b"s"), list(b"low")]
    assert isinstance(taken[-1], Generation)


def test_other_calls_go_on_in_between_and_streams_do_not_mix(run_dir: Path, make: Make) -> None:
    asked: list[Generate] = []

    def interleave(message: FromClient) -> list[ToClient]:
        """A stream gets a token for each generation that is asked for after it."""
        if not isinstance(message, Generate):
            return []
        if message.stream_window:
            asked.append(message)
            return [tokens(message.request_id, 0, 10 * len(asked))]
        step = message.max_tokens
        parts = [StreamedTokens(each.request_id, step, [10 * index + step]) for index, each in enumerate(asked, 1)]
        return [Tokens(parts), Generated(message.request_id, [step], "length", 1, 0)]

    with fake_service(run_dir, interleave), make(run_dir) as client:
        streams = [pieces_of(client, "x") for _ in range(2)]
        assert [next(pieces) for pieces in streams] == [[10], [20]]
        for step in (1, 2):
            assert client.generate("y", max_tokens=step).tokens == [step]
        assert [next(pieces) for pieces in streams] == [[11, 12], [21, 22]]
        for pieces in streams:
            pieces.close()  # type: ignore[attr-defined]


def test_receipts_keep_a_long_stream_flowing(run_dir: Path, make: Make) -> None:
    """The service sends no more than the window: without receipts it would not go on."""
    length, sent, ids = 5 * STREAM_WINDOW, [0], list[int]()

    def flow(message: FromClient) -> list[ToClient]:
        if isinstance(message, Generate):
            ids.append(message.request_id)
        elif not isinstance(message, TokensTaken):
            return []
        taken = message.num_tokens if isinstance(message, TokensTaken) else 0
        first, sent[0] = sent[0], min(length, taken + STREAM_WINDOW)
        parts: list[ToClient] = [tokens(ids[0], number, number) for number in range(first, sent[0])]
        return [*parts, *([Generated(ids[0], list(range(length)), "length", 1, 0)] if sent[0] == length else [])]

    with fake_service(run_dir, flow) as received, make(run_dir) as client:
        assert tokens_in(pieces_of(client, "x")) == list(range(length))
        receipts = [message.num_tokens for message in received if isinstance(message, TokensTaken)]
        assert receipts == sorted(set(receipts))
        assert len(receipts) <= length // (STREAM_WINDOW // 2)


def test_a_gap_is_an_error_and_ends_it_in_the_service(run_dir: Path, make: Make) -> None:
    def skip(message: FromClient) -> list[ToClient]:
        return [tokens(message.request_id, 3, 1)] if isinstance(message, Generate) else []

    with fake_service(run_dir, skip) as received, make(run_dir) as client:
        with pytest.raises(RemoteProtocolError):
            list(pieces_of(client, "x"))
        eventually(lambda: received[-1], lambda last: isinstance(last, Cancel), "the last word")


def test_frontend_that_dies_ends_the_stream_retryably(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, hesitate):
        client = make(run_dir).__enter__()
        try:
            pieces = pieces_of(client, "x")
            assert next(pieces) == [1, 2]
        except BaseException:
            client.__exit__(None, None, None)
            raise
    with pytest.raises(PeerGone) as caught:
        next(pieces)
    assert caught.value.retryable
    client.__exit__(None, None, None)


def test_frame_that_the_service_could_not_read_ends_open_streams(run_dir: Path, make: Make) -> None:
    def garbled(message: FromClient) -> list[ToClient]:
        garbage = Failed(None, error_to_wire(RemoteProtocolError("garbled")))
        return hesitate(message) or ([garbage] if isinstance(message, Generate) else [])

    with fake_service(run_dir, garbled), make(run_dir) as client:
        pieces = pieces_of(client, "x")
        next(pieces)
        with pytest.raises(RemoteProtocolError):
            client.generate("y")
        with pytest.raises(RemoteProtocolError):
            next(pieces)


def test_closed_client_ends_its_streams(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, hesitate), make(run_dir) as client:
        pieces = pieces_of(client, "x")
        assert next(pieces) == [1, 2]
        client.close()
        with pytest.raises(RequestAborted):
            next(pieces)
        with pytest.raises(RequestAborted):
            next(pieces_of(client, "y"))


def test_stream_that_another_thread_drops_is_ended_at_once(run_dir: Path) -> None:
    """As the collector of garbage may, in any thread."""
    with fake_service(run_dir, hesitate) as received, Client(run_dir) as client:
        pieces = client.generate_stream("x")
        next(pieces)
        thread = threading.Thread(target=pieces.close)
        thread.start()
        thread.join(30)
        assert has_no_streams(client)
        eventually(lambda: received[-1], lambda last: isinstance(last, Cancel), "the last word")


def test_forked_child_has_no_part_in_its_parents_stream(run_dir: Path) -> None:
    with fake_service(run_dir, hesitate) as received, Client(run_dir) as client:
        pieces = client.generate_stream("x")
        next(pieces)
        pid = os.fork()
        if pid == 0:
            status = 1
            signal.alarm(30)  # it may not outlive a test that has failed
            try:
                next(pieces)
            except RequestAborted:
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert not [message for message in received if isinstance(message, Cancel)]
        pieces.close()
        eventually(lambda: received[-1], lambda last: isinstance(last, Cancel), "the last word")


# ---- asyncio


def in_loop(run_dir: Path, reply: Callable[[FromClient], list[ToClient]], body: Callable[..., Any]) -> list[FromClient]:
    async def run() -> None:
        async with AsyncClient(run_dir) as client:
            await body(client)

    with fake_service(run_dir, reply) as received:
        asyncio.run(asyncio.wait_for(run(), 30))
        return received


def test_async_streams_run_at_once(run_dir: Path) -> None:
    async def read(client: AsyncClient, text: str) -> bytes:
        taken = [piece async for piece in client.generate_stream(text)]
        assert isinstance(taken[-1], Generation)
        return bytes(tokens_in(taken))

    async def body(client: AsyncClient) -> None:
        texts = [f"number {index}" for index in range(30)]
        assert await asyncio.gather(*(read(client, text) for text in texts)) == [text.encode() for text in texts]

    in_loop(run_dir, spell, body)


@pytest.mark.parametrize("how", ["break", "cancel"])
def test_async_stop_reaches_the_service(run_dir: Path, how: str) -> None:
    async def body(client: AsyncClient) -> None:
        has_some = asyncio.Event()

        async def read() -> None:
            async for _ in client.generate_stream("x"):
                has_some.set()
                if how == "break":
                    break

        task = asyncio.create_task(read())
        await has_some.wait()
        if how == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert client._link is not None
        while client._link._streams:  # noqa: ASYNC110 (asyncio ends what is dropped, a few turns later)
            await asyncio.sleep(0)

    received = in_loop(run_dir, hesitate, body)
    assert [message for message in received if isinstance(message, Cancel)]
