"""`generate_stream` of both clients against a service that says what a test tells it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from mmcached.client import Client, Generation
from mmcached.client.calls import STREAM_WINDOW
from mmcached.client.links.link import WaitingCall
from mmcached.client.results import Piece
from mmcached.wire.errors import (
    ClientClosed,
    CorruptImage,
    DeadlineExceeded,
    InvalidRequest,
    PeerGone,
    RemoteProtocolError,
    RequestAborted,
    error_to_wire,
)
from mmcached.wire.messages.client import Failed, Generated, ToClient, Tokens
from mmcached.wire.messages.frontend import Cancel, FromClient, Generate, TokensTaken
from mmcached.wire.messages.parts import MAX_SEED, Sampling, StreamedTokens
from tests.client.blocking import Make
from tests.client.fork_child import in_child
from tests.client.services import fake_service, hesitate, send_half_of_the_next_message, tokens
from tests.integration.processes import eventually


def tokens_in(pieces: Iterable[Piece]) -> list[int]:
    """Return the tokens of all lists."""
    return [token for piece in pieces if isinstance(piece, list) for token in piece]


def spell(message: FromClient) -> list[ToClient]:
    """Answer a generation with the letters of its prompt: one by one if it is streamed, the last with the answer."""
    if not isinstance(message, Generate):
        return []
    assert isinstance(message.prompt, str)
    letters = list(message.prompt.encode())
    streamed = letters[:-1] if message.stream_window else []
    parts = [tokens(message.request_id, first, letter) for first, letter in enumerate(streamed)]
    return [
        tokens(message.request_id + 99, 0, 1),
        *parts,
        Generated(message.request_id, letters, "length", 3, 0, text=message.prompt),
    ]


def num_waiters() -> int:
    """Count the calls and streams that are open in this process, or were and are not collected yet."""
    return sum(issubclass(type(each), WaitingCall) for each in gc.get_objects())


def asked_of(received: list[FromClient]) -> Generate:
    return next(message for message in received if isinstance(message, Generate))


def test_tokens_come_once_in_order_and_then_the_generation(run_dir: Path, make: Make) -> None:
    before = num_waiters()
    with fake_service(run_dir, spell) as received, make(run_dir) as client:
        *pieces, generation = client.generate_stream("letters", max_tokens=7, timeout_s=9.0)
        assert isinstance(generation, Generation)
        assert tokens_in(pieces) == generation.tokens == list(b"letters")
        assert [] not in pieces
        asked = asked_of(received)
        assert (asked.max_tokens, asked.timeout_s, asked.stream_window) == (7, 9.0, STREAM_WINDOW)
        assert client.generate("plain", priority=-7).text == "plain"
        assert (received[-1].stream_window, received[-1].priority) == (0, -7)  # type: ignore[union-attr]
        assert num_waiters() <= before


def test_a_stream_whose_connection_was_lost_is_cancelled_over_the_next(
    run_dir: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_service(run_dir, hesitate) as received, make(run_dir) as client:
        pieces = client.generate_stream([1])
        assert next(pieces) == [1, 2]
        send_half_of_the_next_message(monkeypatch, MemoryError)
        with pytest.raises(MemoryError):
            client.generate([2])
        with pytest.raises(PeerGone):
            next(pieces)
        cancel = Cancel(asked_of(received).client_id, asked_of(received).request_id)
        eventually(lambda: received, lambda messages: cancel in messages, "the cancel")


def test_errors_are_those_of_generate(run_dir: Path, make: Make) -> None:
    def refuse(message: FromClient) -> list[ToClient]:
        error = error_to_wire(CorruptImage("images[0]", "cat.png", "no image"))
        return [Failed(message.request_id, error)] if isinstance(message, Generate) else []

    with fake_service(run_dir, refuse) as received, make(run_dir) as client:
        with pytest.raises(CorruptImage):
            list(client.generate_stream("x"))
        assert not [message for message in received if isinstance(message, Cancel)], "the service has ended it"


def test_nothing_is_asked_before_the_first_step(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, spell) as received:
        with make(run_dir) as client:
            pieces = client.generate_stream("never")
            del pieces
            gc.collect()
        assert not [message for message in received if isinstance(message, Generate)]


@pytest.mark.parametrize("how", ["close", "drop", "error"])
def test_whoever_stops_early_ends_it_in_the_service(run_dir: Path, make: Make, how: str) -> None:
    before = num_waiters()
    with fake_service(run_dir, hesitate) as received, make(run_dir) as client:
        pieces = client.generate_stream("x")
        assert next(pieces) == [1, 2]
        match how:
            case "close":
                pieces.close()
            case "drop":
                del pieces
            case "error":
                with pytest.raises(ZeroDivisionError):
                    pieces.throw(ZeroDivisionError())
        asked = asked_of(received)
        wanted = Cancel(asked.client_id, asked.request_id)
        eventually(lambda: received[-1], lambda last: last == wanted, "the last word")
        assert num_waiters() <= before


def test_silence_is_a_deadline_and_ends_it_in_the_service(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, hesitate) as received, make(run_dir) as client:
        pieces = client.generate_stream("x", timeout_s=0.05)
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

    with fake_service(run_dir, spell_in_two), make(run_dir) as client:
        pieces = client.generate_stream("slow", timeout_s=0.02)
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
        streams = [client.generate_stream("x") for _ in range(2)]
        assert [next(pieces) for pieces in streams] == [[10], [20]]
        for step in (1, 2):
            assert client.generate("y", max_tokens=step).tokens == [step]
        assert [next(pieces) for pieces in streams] == [[11, 12], [21, 22]]
        for pieces in streams:
            pieces.close()


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
        assert tokens_in(client.generate_stream("x")) == list(range(length))
        receipts = [message.num_tokens for message in received if isinstance(message, TokensTaken)]
        assert receipts == sorted(set(receipts))
        assert len(receipts) <= length // (STREAM_WINDOW // 2)


def test_a_gap_is_an_error_and_ends_it_in_the_service(run_dir: Path, make: Make) -> None:
    def skip(message: FromClient) -> list[ToClient]:
        return [tokens(message.request_id, 3, 1)] if isinstance(message, Generate) else []

    with fake_service(run_dir, skip) as received, make(run_dir) as client:
        with pytest.raises(RemoteProtocolError):
            list(client.generate_stream("x"))
        eventually(lambda: received[-1], lambda last: isinstance(last, Cancel), "the last word")


def test_frontend_that_dies_ends_the_stream_retryably(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, hesitate):
        client = make(run_dir).__enter__()
        try:
            pieces = client.generate_stream("x")
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
        pieces = client.generate_stream("x")
        next(pieces)
        with pytest.raises(RemoteProtocolError):
            client.generate("y")
        with pytest.raises(RemoteProtocolError):
            next(pieces)


def test_closed_client_ends_its_streams(run_dir: Path, make: Make) -> None:
    with fake_service(run_dir, hesitate), make(run_dir) as client:
        pieces = client.generate_stream("x")
        assert next(pieces) == [1, 2]
        client.close()
        with pytest.raises(ClientClosed):
            next(pieces)
        with pytest.raises(ClientClosed):
            next(client.generate_stream("y"))


def test_stream_that_another_thread_drops_is_ended_at_once(run_dir: Path) -> None:
    """As the collector of garbage may, in any thread."""
    before = num_waiters()
    with fake_service(run_dir, hesitate) as received, Client(run_dir) as client:
        pieces = client.generate_stream("x")
        next(pieces)
        thread = threading.Thread(target=pieces.close)
        thread.start()
        thread.join(30)
        assert num_waiters() <= before
        eventually(lambda: received[-1], lambda last: isinstance(last, Cancel), "the last word")


def test_forked_child_has_no_part_in_its_parents_stream(run_dir: Path) -> None:
    with fake_service(run_dir, hesitate) as received, Client(run_dir) as client:
        pieces = client.generate_stream("x")
        next(pieces)

        def child() -> str:
            with pytest.raises(RequestAborted):
                next(pieces)
            return "refused"

        assert in_child(child) == "refused"
        assert not [message for message in received if isinstance(message, Cancel)]
        pieces.close()
        eventually(lambda: received[-1], lambda last: isinstance(last, Cancel), "the last word")


SAMPLING = Sampling(temperature=1.0, seed=MAX_SEED - 1)


def test_several_answers_come_together_once_the_first_has_begun(run_dir: Path, make: Make) -> None:
    asked: list[Generate] = []

    def answer(message: FromClient) -> Iterator[ToClient]:
        """Say a token of the first answer, then, when all are asked for, one of each; the last ends first."""
        if not isinstance(message, Generate):
            return
        asked.append(message)
        ids = [each.request_id for each in asked]
        if len(asked) == 1:
            yield tokens(ids[0], 0, 10)
        elif len(asked) == 3:
            yield Tokens([StreamedTokens(number, 0, [10 * index]) for index, number in enumerate(ids[1:], 2)])
            yield tokens(ids[0], 1, 11)
            for index, number in reversed(list(enumerate(ids, 1))):
                yield Generated(number, [10 * index, 10 * index + 1], "length", 3, 0)

    with fake_service(run_dir, answer) as received, make(run_dir) as client:
        pieces = client.generate_stream("x", n=3, sampling=SAMPLING)
        rest = list(pieces)
        seeds = [each.sampling.seed for each in asked if each.sampling is not None]
        assert seeds == [MAX_SEED - 1, MAX_SEED, 0]
        assert not [message for message in received if isinstance(message, Cancel)]
    for index in range(3):
        *own, end = [piece for piece in rest if piece.answer_index == index]
        assert tokens_in(own) == [10 * index + 10, 10 * index + 11]
        assert isinstance(end, Generation)
        assert (end.tokens, end.others) == ([10 * index + 10, 10 * index + 11], [])


def test_an_answer_that_fails_ends_the_others_in_the_service(run_dir: Path, make: Make) -> None:
    before, asked = num_waiters(), list[Generate]()

    def fail_the_second(message: FromClient) -> list[ToClient]:
        if not isinstance(message, Generate):
            return []
        asked.append(message)
        if len(asked) == 3:
            return [Failed(asked[1].request_id, error_to_wire(RequestAborted("lost")))]
        return [tokens(message.request_id, 0, 1)]

    with fake_service(run_dir, fail_the_second) as received, make(run_dir) as client:
        with pytest.raises(RequestAborted):
            list(client.generate_stream("x", n=3, sampling=SAMPLING))
        eventually(lambda: asked, lambda found: len(found) == 3, "all requests")
        wanted = [Cancel(asked[0].client_id, asked[index].request_id) for index in (0, 2)]
        eventually(lambda: received, lambda messages: all(each in messages for each in wanted), "the cancels")
        gc.collect()  # the error refers to its stream
        assert num_waiters() <= before
        with pytest.raises(InvalidRequest, match="temperature"):
            client.generate_stream("x", n=2)
