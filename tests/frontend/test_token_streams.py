"""Tokens from engines to the clients that asked for them: to nobody else, within the window, gone with the request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcached.frontend.open_requests import OpenRequest
from mmcached.frontend.token_streams import TokenStreams
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import error_from_wire
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages.client import StreamedTokens, Tokens
from mmcached.wire.messages.frontend import CommittedTokens, Generate, TokensTaken
from tests.clock import Clock
from tests.frontend.fake_peers import Bench, FakeEngine

CLIENT = "c" * 32
CONFIG = ServiceConfig(mm_processor_cache_gb=0, store_gb=0, max_num_requests=3)


class Desk:
    """TokenStreams, with queues that take or refuse."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, list[StreamedTokens]]] = []
        self.is_full = False
        self.streams = TokenStreams(self._send)

    def _send(self, peer: bytes, message: Tokens) -> bool:
        if not self.is_full:
            self.sent.append(
                (peer, [StreamedTokens(s.request_id, s.first, list(s.token_ids)) for s in message.streams])
            )
        return not self.is_full

    def open(self, number: int, *, peer: bytes = b"peer", window: int = 100) -> None:
        message = Generate(CLIENT, number + 1000, "x", 99, None, 5.0, stream_window=window)
        self.streams.open(OpenRequest(number, peer, message, [], 9.0))

    def commit(self, number: int, first: int, *token_ids: int) -> None:
        self.streams.committed(CommittedTokens(number, first, list(token_ids)))

    def flush(self) -> list[tuple[bytes, list[StreamedTokens]]]:
        """Flush, and return what was sent by it."""
        self.sent.clear()
        self.streams.flush()
        self.streams.check_integrity()
        return list(self.sent)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_each_client_gets_one_message_with_all_of_its_streams(desk: Desk) -> None:
    for number, peer in ((1, b"a"), (2, b"b"), (3, b"a")):
        desk.open(number, peer=peer)
    desk.commit(1, 0, 10)
    desk.commit(2, 0, 20)
    desk.commit(3, 0, 30)
    desk.commit(1, 1, 11)
    sent = desk.flush()
    assert sent == [
        (b"a", [StreamedTokens(1001, 0, [10, 11]), StreamedTokens(1003, 0, [30])]),
        (b"b", [StreamedTokens(1002, 0, [20])]),
    ]
    assert desk.flush() == []


def test_a_client_that_takes_slowly_gets_the_rest_in_one_piece(desk: Desk) -> None:
    desk.open(1, window=2)
    for first in range(7):
        desk.commit(1, first, first)
        desk.flush()
    desk.streams.taken(1, 2)
    assert desk.flush() == [(b"peer", [StreamedTokens(1001, 2, [2, 3, 4, 5, 6])])]
    desk.streams.taken(1, 3)  # four are on the way
    desk.commit(1, 7, 7)
    assert desk.flush() == []
    desk.streams.taken(1, 6)
    assert desk.flush() == [(b"peer", [StreamedTokens(1001, 7, [7])])]
    desk.streams.taken(1, 8)
    desk.streams.taken(1, 2)
    desk.commit(1, 8, 8)
    assert desk.flush() == [(b"peer", [StreamedTokens(1001, 8, [8])])], "an older word takes nothing back"


def test_a_client_cannot_take_what_was_not_sent(desk: Desk) -> None:
    """Or its window would be as large as it says."""
    desk.open(1, window=2)
    desk.streams.taken(1, 1 << 40)
    for first in range(4):
        desk.commit(1, first, first)
        desk.flush()
    desk.streams.check_integrity()
    desk.commit(1, 4, 4)
    assert desk.flush() == []


def test_what_a_full_queue_refuses_comes_with_the_next(desk: Desk) -> None:
    desk.open(1)
    desk.is_full = True
    desk.commit(1, 0, 5)
    desk.flush()
    desk.is_full = False
    assert desk.flush() == [], "the next is due when there is one"
    desk.commit(1, 1, 6)
    assert desk.flush() == [(b"peer", [StreamedTokens(1001, 0, [5, 6])])]


def test_repeated_tokens_are_left_out_and_behind_a_gap_nothing_is_sent(desk: Desk) -> None:
    desk.open(1)
    desk.commit(1, 0, 5, 6)
    desk.commit(1, 1, 6, 7)
    desk.commit(1, 4, 9)  # 8 was lost with a connection: the answer brings it
    desk.commit(1, 5, 10)
    assert desk.flush() == [(b"peer", [StreamedTokens(1001, 0, [5, 6, 7])])]


def test_nothing_is_sent_or_kept_of_what_is_over_unknown_or_not_streamed(desk: Desk) -> None:
    desk.open(1)
    desk.open(2, window=0)
    desk.commit(1, 0, 5)
    desk.streams.close(1)
    desk.streams.close(1)
    for number in (1, 2, 3):
        desk.commit(number, 0, 5)
        desk.streams.taken(number, 1)
    assert desk.flush() == []
    assert len(desk.streams) == 0


# ---- in a frontend


@pytest.fixture
def bench(run_dir: Path) -> Iterator[Bench]:
    with Bench(run_dir, CONFIG, Clock(tick_s=0.01)) as bench:
        yield bench


def ask(bench: Bench, engine: FakeEngine, request_id: int, *, window: int = 8) -> int:
    """Ask for a streamed generation; return its number in the engine."""
    message = Generate(bench.client_id, request_id, "look", 40, None, 60.0, stream_window=window, priority=-3)
    bench.client.send(message)
    add = bench.from_frontend(engine, to_engine.AddRequest)
    assert (add.is_streamed, add.priority) == (window > 0, -3)
    return add.request_id


def commit(engine: FakeEngine, *parts: tuple[int, int, list[int]]) -> None:
    engine.channel.send(to_frontend.TokensCommitted([CommittedTokens(*part) for part in parts]))


def test_tokens_go_to_the_client_that_asked_and_only_to_it(bench: Bench) -> None:
    engine = bench.connect_engine()
    other = bench.connect_client(has_row=False)
    first = ask(bench, engine, 1)
    other.channel.send(Generate(other.client_id, 1, "look", 40, None, 60.0, stream_window=8))
    second = bench.from_frontend(engine, to_engine.AddRequest).request_id
    third = ask(bench, engine, 2, window=0)
    commit(engine, (first, 0, [5]), (second, 0, [6]), (third, 0, [7]))
    assert bench.answer(Tokens).streams == [StreamedTokens(1, 0, [5])]
    assert other.answer(Tokens).streams == [StreamedTokens(1, 0, [6])]
    for number in (first, second, third):
        engine.channel.send(to_frontend.RequestGenerated(number, [number], "length", 0))
    assert other.answer(to_client.Generated).token_ids == [second]
    assert [bench.answer(to_client.Generated).request_id for _ in range(2)] == [1, 2]
    assert len(bench.frontend._requests._streams) == 0


def test_the_answer_has_all_tokens_and_those_that_wait_are_not_sent_before_it(bench: Bench) -> None:
    engine = bench.connect_engine()
    number = ask(bench, engine, 1, window=1)
    commit(engine, (number, 0, [5]))
    assert bench.answer(Tokens).streams == [StreamedTokens(1, 0, [5])]
    commit(engine, (number, 1, [6]))
    engine.channel.send(to_frontend.RequestGenerated(number, [5, 6, 7], "length", 0))
    assert bench.answer(to_client.Generated).token_ids == [5, 6, 7]


@pytest.mark.parametrize("how", ["cancel", "bye", "death", "deadline", "engine"])
def test_nothing_is_left_of_a_stream_that_ends_early(bench: Bench, how: str) -> None:
    engine = bench.connect_engine()
    number = ask(bench, engine, 1, window=1)
    commit(engine, (number, 0, [5, 6]))
    bench.answer(Tokens)
    commit(engine, (number, 2, [7]))
    match how:
        case "cancel":
            bench.client.send(to_frontend.Cancel(bench.client_id, 1))
        case "bye":
            bench.client.send(to_frontend.ClientBye(bench.client_id))
        case "death":
            bench.presence.close()
        case "deadline":
            bench.frontend._clock.now += 61  # type: ignore[attr-defined]
        case "engine":
            bench.add_engine(digest=CONFIG.digest())  # another process takes its place
    bench.pump(lambda: not len(bench.frontend._requests))
    if how in ("deadline", "engine"):
        assert bench.answer(to_client.Failed).error.retryable
    if how != "engine":
        assert bench.from_frontend(engine, to_engine.AbortRequest).request_id == number
    assert len(bench.frontend._requests._streams) == 0
    commit(engine, (number, 3, [8]))
    bench.client.send(TokensTaken(bench.client_id, 1, 2))
    assert bench.stats().requests_open == 0, "and what comes late is for nobody"


def test_a_client_that_takes_nothing_keeps_nobody_waiting(bench: Bench) -> None:
    """It gets its window's worth of messages, however many steps there are; what waits is a list of numbers."""
    engine = bench.connect_engine()
    slow = ask(bench, engine, 1, window=4)
    for first in range(30):
        commit(engine, (slow, first, [first]))
        bench.pump(lambda: bench.frontend._requests._streams._streams[slow].num_committed == first + 1)  # noqa: B023
    stats = bench.stats(after=Tokens)
    assert stats.requests_open == 1
    bench.client.send(TokensTaken(bench.client_id, 1, 4))
    assert bench.answer(Tokens).streams == [StreamedTokens(1, 4, list(range(4, 30)))]


def test_refusals_for_want_of_room_are_typed_and_retryable_wherever_they_come_from(bench: Bench) -> None:
    engine = bench.connect_engine()
    numbers = [ask(bench, engine, request_id) for request_id in (1, 2, 3)]
    bench.generate(4, [])
    refusals = [bench.answer(to_client.Failed)]
    full = error_from_wire(refusals[0].error)
    engine.channel.send(to_frontend.RequestFailed(numbers[0], refusals[0].error))  # as an engine says it
    refusals.append(bench.answer(to_client.Failed))
    assert [refusal.request_id for refusal in refusals] == [4, 1]
    assert (full.code, full.retryable) == ("service_unavailable", True)
    assert full.details == {"field": "max_num_requests", "value": 3, "limit": 3}
    bench.generate(5, [])
    bench.from_frontend(engine, to_engine.AddRequest)
