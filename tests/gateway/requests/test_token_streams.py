"""Tokens and rows from engines to the clients that asked for them: to nobody else, within the windows, gone with the
request.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import pytest

from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.token_streams import TokenStreams
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import RemoteProtocolError, RequestAborted, error_from_wire
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.client import ToClient, Tokens
from mmcached.wire.messages.frontend import Generate, TokensTaken
from mmcached.wire.messages.parts import RequestRows, Rows, RowsWanted, StreamedTokens, Tensor
from mmcached.wire.sockets.frames import Frame
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import Bench
from tests.frontend.integrity import check_frontend

CLIENT = "c" * 32
A = RowsWanted(["a"], delivery="delta")
CONFIG = ServiceConfig(mm_processor_cache_gb=0, store_gb=0, max_num_requests=3)


Told = tuple[int, str, int, list[int]]
"""Rows of width 1: request, key, first position, values."""
TICK_S = 0.01


def packed(first: int, values: Sequence[int], key: str = "a", frame: int = 0) -> tuple[Rows, bytes]:
    return Rows(key, first, Tensor(frame, "int32", (len(values), 1))), struct.pack(f"<{len(values)}i", *values)


def values_of(rows: Rows, payload: Sequence[Frame]) -> list[int]:
    data = bytes(payload[rows.tensor.frame])
    assert rows.tensor.shape == (len(data) // 4, 1)
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def check_streams(streams: TokenStreams, requests: Iterable[OpenRequest]) -> None:
    """No more was taken than was sent, and what is due is open."""
    opened = {request.stream for request in requests if request.stream is not None}
    assert streams.due() <= opened
    for stream in opened:
        assert 0 <= stream.num_taken <= stream.num_sent
        assert 0 <= stream.num_row_bytes_taken <= stream.num_row_bytes_sent


class Desk:
    """TokenStreams, with queues that take or refuse; four rows of width 1 fill the window of rows.

    Attributes:
        sent_rows: what each message has had of rows.
    """

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, list[StreamedTokens]]] = []
        self.sent_rows: list[list[Told]] = []
        self.is_full = False
        self.requests: dict[int, OpenRequest] = {}
        self.streams = TokenStreams(self._send, row_window_bytes=16)

    def _send(self, peer: bytes, message: ToClient, payload: Sequence[Frame]) -> bool:
        assert isinstance(message, Tokens)
        if not self.is_full:
            self.sent.append(
                (peer, [StreamedTokens(s.request_id, s.first, list(s.token_ids)) for s in message.streams])
            )
            told = [(part.request_id, part.rows.key, part.rows.first) for part in message.rows]
            values = [values_of(part.rows, payload) for part in message.rows]
            self.sent_rows.append([(*names, found) for names, found in zip(told, values, strict=True)])
        return not self.is_full

    def open(self, number: int, *, peer: bytes = b"peer", window: int = 100, rows: RowsWanted | None = None) -> None:
        message = Generate(CLIENT, number + 1000, "x", 99, rows, 5.0, stream_window=window)
        self.requests[number] = OpenRequest(number, peer, message, [], 9.0)
        self.streams.open(self.requests[number])

    def commit_rows(self, number: int, first: int, *values: int, key: str = "a") -> None:
        rows, data = packed(first, values, key, 1)
        self.streams.committed_rows(self.requests[number], rows, [b"other", data])

    def taken(self, number: int, num_tokens: int, num_rows: int = 0) -> None:
        self.streams.taken(self.requests[number], TokensTaken(CLIENT, number + 1000, num_tokens, 4 * num_rows))

    def flush_rows(self) -> list[list[Told]]:
        """Flush, and return which rows each message had."""
        self.sent_rows.clear()
        self.flush()
        return list(self.sent_rows)

    def commit(self, number: int, first: int, *token_ids: int) -> None:
        self.streams.committed(self.requests[number], StreamedTokens(number, first, list(token_ids)))

    def check(self) -> None:
        """No more was taken than was sent, and what is due is open."""
        check_streams(self.streams, self.requests.values())

    def flush(self) -> list[tuple[bytes, list[StreamedTokens]]]:
        """Flush, and return what was sent by it."""
        self.sent.clear()
        self.streams.flush()
        self.check()
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
    desk.taken(1, 2)
    assert desk.flush() == [(b"peer", [StreamedTokens(1001, 2, [2, 3, 4, 5, 6])])]
    desk.taken(1, 3)  # four are on the way
    desk.commit(1, 7, 7)
    assert desk.flush() == []
    desk.taken(1, 6)
    assert desk.flush() == [(b"peer", [StreamedTokens(1001, 7, [7])])]
    desk.taken(1, 8)
    desk.taken(1, 2)
    desk.commit(1, 8, 8)
    assert desk.flush() == [(b"peer", [StreamedTokens(1001, 8, [8])])], "an older word takes nothing back"


def test_a_client_cannot_take_what_was_not_sent(desk: Desk) -> None:
    """Or its window would be as large as it says."""
    desk.open(1, window=2)
    desk.taken(1, 1 << 40)
    for first in range(4):
        desk.commit(1, first, first)
        desk.flush()
    desk.check()
    desk.commit(1, 4, 4)
    assert desk.flush() == []


def test_what_a_full_queue_refuses_comes_with_the_next(desk: Desk) -> None:
    desk.open(1)
    desk.open(2, rows=A)
    desk.is_full = True
    desk.commit(1, 0, 5)
    desk.commit_rows(2, 0, 5)
    desk.flush()
    desk.is_full = False
    assert desk.flush() == [], "the next is due when there is one"
    desk.commit(1, 1, 6)
    desk.commit_rows(2, 1, 6)
    assert desk.flush_rows() == [[(1002, "a", 0, [5, 6])]]
    assert desk.sent == [(b"peer", [StreamedTokens(1001, 0, [5, 6])])]


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
    desk.streams.close(desk.requests[1])
    desk.streams.close(desk.requests[1])
    for number in (1, 2):
        desk.commit(number, 0, 5)
        desk.taken(number, 1)
    assert desk.flush() == []


# ---- rows

AB = RowsWanted(["a", "b"], 3, "delta")


def test_rows_go_with_the_tokens_of_their_step_from_the_first_that_is_wanted(desk: Desk) -> None:
    desk.open(1, rows=AB)
    desk.open(2, rows=A)
    desk.commit_rows(1, 3, 13, 14)
    desk.commit_rows(1, 3, 23, 24, key="b")
    desk.commit_rows(2, 0, 7)
    assert desk.flush_rows() == [[(1001, "a", 3, [13, 14]), (1001, "b", 3, [23, 24]), (1002, "a", 0, [7])]]
    assert desk.sent == [(b"peer", [])], "a step of the prompt has no token"
    desk.taken(1, 0, num_rows=4)
    desk.commit_rows(1, 5, 15)
    desk.commit_rows(1, 5, 25, key="b")
    desk.commit(1, 0, 9)
    assert desk.flush_rows() == [[(1001, "a", 5, [15]), (1001, "b", 5, [25])]]
    assert desk.sent == [(b"peer", [StreamedTokens(1001, 0, [9])])]
    assert desk.flush_rows() == []


def test_while_the_window_of_rows_is_used_up_tokens_wait_too_and_then_all_goes_in_one_piece(desk: Desk) -> None:
    desk.open(1, rows=A)
    for position in range(7):
        desk.commit_rows(1, position, position)
        desk.commit(1, position, position)
        assert len(desk.flush_rows()) == (position < 4)
    desk.taken(1, 4, num_rows=1)
    assert desk.flush_rows() == [[(1001, "a", 4, [4, 5, 6])]]
    assert desk.sent == [(b"peer", [StreamedTokens(1001, 4, [4, 5, 6])])]
    desk.taken(1, 7, num_rows=2)
    desk.taken(1, 7, num_rows=1)
    desk.commit_rows(1, 7, 7)
    assert desk.flush_rows() == []
    desk.taken(1, 7, num_rows=4)
    assert desk.flush_rows() == [[(1001, "a", 7, [7])]]
    desk.taken(1, 7, num_rows=1 << 40)
    desk.check()


def test_while_the_window_of_tokens_is_used_up_rows_wait_too(desk: Desk) -> None:
    desk.open(1, window=1, rows=A)
    desk.commit(1, 0, 5)
    desk.flush()
    desk.commit_rows(1, 0, *range(9))
    assert desk.flush_rows() == []
    desk.taken(1, 1)
    assert desk.flush_rows() == [[(1001, "a", 0, list(range(9)))]], "one piece may be larger than the window"


def test_the_answer_brings_the_rows_that_wait_and_then_its_own(desk: Desk) -> None:
    desk.open(1, rows=AB)
    desk.commit_rows(1, 3, 13)
    desk.commit_rows(1, 3, 23, key="b")
    desk.flush()
    desk.is_full = True
    desk.commit_rows(1, 4, 14, 15)
    desk.flush()
    parts = [packed(6, [16], "a", 0), packed(4, [24, 25, 26], "b", 1)]
    rows, payload = desk.streams.rest(desk.requests[1], [part for part, _ in parts], [data for _, data in parts])
    assert [(part.key, part.first, values_of(part, payload)) for part in rows] == [
        ("a", 4, [14, 15, 16]),
        ("b", 4, [24, 25, 26]),
    ]


def test_rows_of_who_wants_them_all_with_the_answer_pass_through(desk: Desk) -> None:
    part, data = packed(0, [1, 2])
    desk.open(1, rows=RowsWanted(["a"]))
    desk.open(2, rows=None)
    desk.commit_rows(1, 0, 1)
    for number in (1, 2):
        assert desk.streams.rest(desk.requests[number], [part], [data]) == ([part], [data])
    assert desk.flush_rows() == []


def test_lost_rows_are_an_error_and_repeated_ones_are_left_out(desk: Desk) -> None:
    desk.open(1, rows=A)
    desk.commit_rows(1, 0, 5, 6)
    desk.commit_rows(1, 1, 6, 7)
    with pytest.raises(RequestAborted, match=r"rows \[3, 4\) of 'a'"):
        desk.commit_rows(1, 4, 9)
    part, data = packed(5, [1])
    with pytest.raises(RequestAborted, match=r"rows \[3, 5\)"):
        desk.streams.rest(desk.requests[1], [part], [data])
    with pytest.raises(RemoteProtocolError):
        desk.streams.committed_rows(desk.requests[1], packed(3, [1], frame=1)[0], [data])
    assert desk.flush_rows() == [[(1001, "a", 0, [5, 6, 7])]]


def test_no_rows_are_kept_of_what_is_over_or_not_asked_for(desk: Desk) -> None:
    desk.open(1, rows=A)
    desk.commit_rows(1, 0, 5)
    desk.streams.close(desk.requests[1])
    desk.commit_rows(1, 0, 5)
    desk.open(2, rows=A)
    desk.commit_rows(2, 0, 5, key="b")
    assert desk.flush_rows() == []


# ---- in a frontend


def ask(bench: Bench, engine: WireEngine, request_id: int, *, window: int = 8) -> int:
    """Ask for a streamed generation; return its number in the engine."""
    message = Generate(bench.client_id, request_id, "look", 40, None, 60.0, stream_window=window, priority=-3)
    bench.client.send(message)
    add = bench.from_frontend(engine, to_engine.AddRequest)
    assert (add.is_streamed, add.priority) == (window > 0, -3)
    return add.request_id


def commit(engine: WireEngine, *parts: tuple[int, int, list[int]]) -> None:
    engine.channel.send(from_engine.TokensCommitted([StreamedTokens(*part) for part in parts]))


def test_tokens_go_to_the_client_that_asked_and_only_to_it(bench: Bench, engine: WireEngine) -> None:
    other = bench.connect_client(is_reader=False)
    first = ask(bench, engine, 1)
    other.channel.send(Generate(other.client_id, 1, "look", 40, None, 60.0, stream_window=8))
    second = bench.from_frontend(engine, to_engine.AddRequest).request_id
    third = ask(bench, engine, 2, window=0)
    commit(engine, (first, 0, [5]), (second, 0, [6]), (third, 0, [7]))
    assert bench.answer(Tokens).streams == [StreamedTokens(1, 0, [5], "\x05")]
    assert other.answer(Tokens).streams == [StreamedTokens(1, 0, [6], "\x06")]
    for number in (first, second, third):
        engine.channel.send(from_engine.RequestGenerated(number, [number], "length", 0))
    assert other.answer(to_client.Generated).token_ids == [second]
    assert [bench.answer(to_client.Generated).request_id for _ in range(2)] == [1, 2]
    check_frontend(bench.frontend)


def test_the_answer_has_all_tokens_and_those_that_wait_are_not_sent_before_it(bench: Bench, engine: WireEngine) -> None:
    number = ask(bench, engine, 1, window=1)
    commit(engine, (number, 0, [5]))
    assert bench.answer(Tokens).streams == [StreamedTokens(1, 0, [5], "\x05")]
    commit(engine, (number, 1, [6]))
    engine.channel.send(from_engine.RequestGenerated(number, [5, 6, 7], "length", 0))
    answer = bench.answer(to_client.Generated)
    assert (answer.token_ids, answer.text) == ([5, 6, 7], "\5\6\7")


def test_text_of_tokens_waits_with_them_and_for_the_rest_of_a_character(bench: Bench, engine: WireEngine) -> None:
    number = ask(bench, engine, 1, window=2)
    euro = list("€".encode())
    commit(engine, (number, 0, [65, *euro[:2]]))
    assert bench.answer(Tokens).streams == [StreamedTokens(1, 0, [65, *euro[:2]], "A")]
    commit(engine, (number, 3, euro[2:]))
    commit(engine, (number, 4, [66]))
    assert bench.stats(after=Tokens).requests_open == 1
    bench.client.send(TokensTaken(bench.client_id, 1, 3))
    assert bench.answer(Tokens).streams == [StreamedTokens(1, 3, [*euro[2:], 66], "€B")]


def commit_rows(engine: WireEngine, number: int, first: int, *values: int) -> None:
    rows, data = packed(first, values, "hidden_states")
    engine.channel.send(from_engine.TokensCommitted([], [RequestRows(number, rows)]), [data])


def ask_for_rows(bench: Bench, engine: WireEngine, request_id: int) -> int:
    """Ask for a generation whose rows are streamed; return its number in the engine."""
    wanted = RowsWanted(first=2, delivery="delta")
    bench.client.send(Generate(bench.client_id, request_id, "look", 40, wanted, 60.0, stream_window=8))
    add = bench.from_frontend(engine, to_engine.AddRequest)
    assert (add.is_streamed, add.rows) == (True, wanted)
    return add.request_id


def test_rows_go_to_the_client_and_the_answer_brings_the_rest(bench: Bench, engine: WireEngine) -> None:
    number = ask_for_rows(bench, engine, 1)
    commit_rows(engine, number, 2, 7, 8)
    (part,) = bench.answer(Tokens).rows
    assert (part.request_id, part.rows.first, values_of(part.rows, bench.payload)) == (1, 2, [7, 8])
    rows, data = packed(4, [9], "hidden_states")
    engine.channel.send(from_engine.RequestGenerated(number, [5], "length", 0, [rows]), [data])
    (rows,) = bench.answer(to_client.Generated).rows
    assert (rows.first, values_of(rows, bench.payload)) == (4, [9])


@pytest.mark.parametrize("is_answer", [False, True])
def test_rows_that_were_lost_end_the_request_retryably_and_only_it(
    bench: Bench, engine: WireEngine, is_answer: bool
) -> None:
    number, other = ask_for_rows(bench, engine, 1), ask_for_rows(bench, engine, 2)
    rows, data = packed(3, [9], "hidden_states")
    if is_answer:
        engine.channel.send(from_engine.RequestGenerated(number, [5], "length", 0, [rows]), [data])
    else:
        commit_rows(engine, number, 3, 9)
    failed = bench.answer(to_client.Failed)
    assert (failed.request_id, failed.error.code, error_from_wire(failed.error).retryable) == (
        1,
        "request_aborted",
        True,
    )
    if not is_answer:
        assert bench.from_frontend(engine, to_engine.AbortRequest).request_id == number
    commit_rows(engine, other, 2, 7)
    assert [part.request_id for part in bench.answer(Tokens).rows] == [2]
    assert bench.stats().requests_open == 1
    check_frontend(bench.frontend)


@pytest.mark.parametrize("how", ["cancel", "bye", "death", "deadline", "engine"])
def test_nothing_is_left_of_a_stream_that_ends_early(bench: Bench, engine: WireEngine, clock: Clock, how: str) -> None:
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
            bench.client_dies()
        case "deadline":
            clock.now += 61
        case "engine":
            bench.engine_dies(engine)
            engine = bench.add_engine(digest=CONFIG.digest())  # another process takes its place
    bench.pump(lambda: not len(bench.gateway.requests))
    if how in ("deadline", "engine"):
        assert bench.answer(to_client.Failed).error.retryable
    if how != "engine":
        assert bench.from_frontend(engine, to_engine.AbortRequest).request_id == number
    check_frontend(bench.frontend)
    commit(engine, (number, 3, [8]))
    bench.client.send(TokensTaken(bench.client_id, 1, 2))
    assert bench.stats().requests_open == 0, "and what comes late is for nobody"


def test_a_client_that_takes_nothing_keeps_nobody_waiting(bench: Bench, engine: WireEngine) -> None:
    """It gets its window's worth of messages, however many steps there are; what waits is a list of numbers."""
    slow = ask(bench, engine, 1, window=4)
    for first in range(30):
        commit(engine, (slow, first, [first]))
        assert bench.stats(after=Tokens).requests_open == 1
    bench.client.send(TokensTaken(bench.client_id, 1, 4))
    assert bench.answer(Tokens).streams == [StreamedTokens(1, 4, list(range(4, 30)), bytes(range(4, 30)).decode())]


def test_refusals_for_want_of_room_are_typed_and_retryable_wherever_they_come_from(
    bench: Bench, engine: WireEngine
) -> None:
    numbers = [ask(bench, engine, request_id) for request_id in (1, 2, 3)]
    bench.generate(4, [])
    refusals = [bench.answer(to_client.Failed)]
    full = error_from_wire(refusals[0].error)
    engine.channel.send(from_engine.RequestFailed(numbers[0], refusals[0].error))  # as an engine says it
    refusals.append(bench.answer(to_client.Failed))
    assert [refusal.request_id for refusal in refusals] == [4, 1]
    assert (full.code, full.retryable) == ("service_unavailable", True)
    assert full.details == {"field": "max_num_requests", "value": 3, "limit": 3}
    bench.generate(5, [])
    bench.from_frontend(engine, to_engine.AddRequest)
