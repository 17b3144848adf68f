"""The three ends of streaming in one process: engine, frontend and client, with queues that refuse and lose in between.

Whatever happens on the way, a caller gets each token once, in order, and in the end all of them, and so with the rows
of each key, none after the token that it gave; if rows are lost with a connection, it hears of that and gets no others.
However little it takes, no more is on the way to it than its windows allow.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from mmcached.client.results import Generation, RowRange
from mmcached.client.token_stream import TokenStream
from mmcached.engine import Request
from mmcached.engine.results.results import Results
from mmcached.frontend.requests.open_requests import OpenRequest
from mmcached.frontend.requests.token_streams import TokenStreams as FrontendStreams
from mmcached.wire.errors import RequestAborted
from mmcached.wire.messages.client import Generated, ToClient, Tokens
from mmcached.wire.messages.frontend import FromEngine, Generate, RequestGenerated, TokensCommitted
from mmcached.wire.messages.parts import Rows, RowsWanted, Tensor
from mmcached.wire.sockets.frames import Frame, decode_frames, encode_frames, make_decoder
from tests.frontend.requests.test_token_streams import check_streams

WINDOW = 4
ROW_WINDOW = 16
"""Bytes: four rows."""
NUM_REQUESTS = 2
NUM_PROMPT_TOKENS = 6
MAX_TOKENS = 30
CLIENT = "c" * 32
PEER = b"peer"
WANTED = [RowsWanted(["a", "b"], 2, "delta"), None]

Rule = tuple[str, int]
RULES = st.lists(
    st.tuples(
        st.sampled_from(
            ["prompt", "step", "step", "refused step", "preempt", "to frontend", "flush", "full", "to client", "take"]
        ),
        st.integers(0, NUM_REQUESTS - 1),
    ),
    max_size=120,
)


def value_at(key: str, position: int) -> int:
    return 1000 * ord(key) + position


class Line:
    """Engine, frontend and client; each rule is one thing that one of them does."""

    def __init__(self) -> None:
        self.engine = Results()
        self.frontend = FrontendStreams(self._send, ROW_WINDOW)
        self.requests: list[Request] = []
        self.opened: list[OpenRequest] = []
        self.streams: list[TokenStream] = []
        self.taken: list[list[int]] = []
        self.row_ends: list[dict[str, int]] = []
        self.to_frontend: deque[tuple[TokensCommitted, list[Frame]]] = deque()
        self.to_client: deque[tuple[Tokens, list[Frame]]] = deque()
        self.is_full = False
        self.lost: set[int] = set()
        for number, wanted in enumerate(WANTED):
            message = Generate(CLIENT, 50 + number, "x", MAX_TOKENS, wanted, 5.0, stream_window=WINDOW)
            prompt = range(100 * number, 100 * number + NUM_PROMPT_TOKENS)
            self.requests.append(Request(number, "generate", prompt, [], max_tokens=MAX_TOKENS, rows=wanted))
            self.engine.open(self.requests[-1], is_streamed=True)
            self.opened.append(OpenRequest(number, PEER, message, [], 9.0))
            self.frontend.open(self.opened[-1])
            self.streams.append(TokenStream(message, row_window_bytes=ROW_WINDOW))
            self.taken.append([])
            self.row_ends.append({} if wanted is None else dict.fromkeys(wanted.keys, wanted.first))

    def _send(self, peer: bytes, message: Tokens, payload: Sequence[Frame]) -> bool:
        assert peer == PEER
        if not self.is_full:
            self.to_client.append(decode_frames(encode_frames(message, payload), make_decoder(ToClient)))
        return not self.is_full

    def play(self, rule: str, number: int) -> None:
        match rule:
            case "prompt":
                self._compute(number)
            case "step" | "refused step":
                self._step(is_queued=rule == "step")
            case "preempt":
                self.requests[number].num_computed_tokens = 0
            case "to frontend" if self.to_frontend:
                self._arrive(*self.to_frontend.popleft())
            case "flush" | "full":
                self.is_full = rule == "full"
                self.frontend.flush()
            case "to client" if self.to_client:
                message, payload = self.to_client.popleft()
                for rows in message.rows:
                    self.streams[rows.request_id - 50].put_rows(rows, payload)
                for piece in message.streams:
                    self.streams[piece.request_id - 50].put(piece)
            case "take" if self.streams[number].has_news and number not in self.lost:
                self._take(number)
        check_streams(self.frontend, self.opened)
        self._check_windows()

    def _check_windows(self) -> None:
        assert len(self.to_client) <= NUM_REQUESTS * (WINDOW + ROW_WINDOW // 4)
        pieces = [sum(map(len, payload)) for _, payload in self.to_client if payload]
        assert sum(pieces[:-1]) < ROW_WINDOW, "the window was open when the last piece went"

    def _compute(self, number: int) -> None:
        """Compute one more token of a prompt, but the last."""
        request = self.requests[number]
        if request.num_computed_tokens < NUM_PROMPT_TOKENS - 1:
            self._make_rows(request, request.num_computed_tokens + 1)
            self._tell([request], [])

    def _step(self, *, is_queued: bool) -> None:
        """Commit a token of each generation that goes on."""
        going = [request for request in self.requests if request.num_tokens < NUM_PROMPT_TOKENS + MAX_TOKENS]
        for request in going:
            self._make_rows(request, request.num_tokens)
            request.append_output_token(1000 * request.request_id + request.num_tokens)
        self._tell(going, going, is_queued=is_queued)

    def _make_rows(self, request: Request, end: int) -> None:
        """Compute up to a position; what was not delivered before is made into rows."""
        first = request.num_rows_delivered
        request.num_computed_tokens = end
        if first >= end:
            return
        request.num_rows_delivered = end
        for key in request.row_keys:
            data = struct.pack(f"<{end - first}i", *(value_at(key, position) for position in range(first, end)))
            rows = Rows(key, first, Tensor(0, "int32", (end - first, 1)))
            self.engine.put_rows(request.request_id, rows, [data])

    def _tell(self, made: Sequence[Request], sampled: Sequence[Request], *, is_queued: bool = True) -> None:
        message, frames = self.engine.unsent(sampled, [request.request_id for request in made])
        if (message.streams or message.rows) and is_queued:
            self.to_frontend.append(decode_frames(encode_frames(message, frames), make_decoder(FromEngine)))
            self.engine.mark_sent(message)

    def _arrive(self, message: TokensCommitted, payload: list[Frame]) -> None:
        for rows in message.rows:
            try:
                self.frontend.committed_rows(self.opened[rows.request_id], rows.rows, payload)
            except RequestAborted:
                self.lost.add(rows.request_id)
                self.frontend.close(self.opened[rows.request_id])
        for part in message.streams:
            self.frontend.committed(self.opened[part.request_id], part)

    def lose(self) -> None:
        """The engine's connection is lost, with all that was under way over it."""
        self.to_frontend.clear()

    def _take(self, number: int) -> Generation | None:
        request = self.requests[number]
        piece = self.streams[number].take()
        receipt = self.streams[number].take_receipt()
        if receipt is not None:
            self.frontend.taken(self.opened[receipt.request_id - 50], receipt)
        if isinstance(piece, Generation):
            for rows in piece.rows.values():
                self._take_rows(number, rows)
            return piece
        if isinstance(piece, RowRange):
            self._take_rows(number, piece)
            return None
        self.taken[number] += piece
        assert self.taken[number] == request.output_token_ids[: len(self.taken[number])]
        if self.streams[number].is_open:
            computed = NUM_PROMPT_TOKENS + len(self.taken[number]) - 1
            assert all(end >= computed for end in self.row_ends[number].values()), "rows before the token they gave"
        return None

    def _take_rows(self, number: int, rows: RowRange) -> None:
        assert rows.first == self.row_ends[number][rows.key]
        wanted = [value_at(rows.key, position) for position in range(rows.first, rows.end)]
        assert rows.tensor.flatten().tolist() == wanted
        self.row_ends[number][rows.key] = rows.end

    def finish(self) -> None:
        """Let each generation be answered, overtaken by nothing that was sent before, and take what is left."""
        if not self.requests[0].output_token_ids:
            self.play("step", 0)
        while self.to_frontend:
            self.play("to frontend", 0)
        while self.to_client:
            self.play("to client", 0)
        for number, request in enumerate(self.requests):
            parts, payload = self._answer(request)
            self.frontend.close(self.opened[number])
            if number in self.lost:
                continue
            answer = Generated(50 + number, request.output_token_ids, "length", NUM_PROMPT_TOKENS, 0, parts)
            self.streams[number].answer(answer, payload)
            while (generation := self._take(number)) is None:
                pass
            assert self.taken[number] == generation.tokens == request.output_token_ids
            assert set(self.row_ends[number].values()) <= {request.num_tokens - 1}
            assert not self.streams[number].is_open
        assert not self.frontend.due()

    def _answer(self, request: Request) -> tuple[list[Rows], Sequence[Frame]]:
        """Return the rows of an answer as they leave the frontend."""
        answer, frames = self.engine.take_answer(request)
        assert isinstance(answer, RequestGenerated)
        try:
            return self.frontend.rest(self.opened[request.request_id], answer.rows, frames)
        except RequestAborted:
            self.lost.add(request.request_id)
            return [], []


@given(RULES, st.integers(0, 300))
def test_each_token_and_row_is_taken_once_and_in_order_whatever_happens(rules: list[Rule], lost_at: int) -> None:
    line = Line()
    for index, (rule, number) in enumerate(rules):
        if index == lost_at:
            line.lose()
        line.play(rule, number)
    line.finish()
    assert line.lost <= ({0} if lost_at < len(rules) else set())


@given(st.integers(1, MAX_TOKENS))
def test_a_caller_who_takes_nothing_has_a_window_of_messages_on_the_way(num_steps: int) -> None:
    line = Line()
    for _ in range(num_steps):
        for rule in ("step", "to frontend", "flush"):
            line.play(rule, 0)
    assert len(line.to_client) == min(num_steps, WINDOW)
    line.finish()


def test_a_caller_who_takes_at_once_never_waits() -> None:
    """What a step commits is there to be taken before the next step, from the first token to the last."""
    line = Line()
    for step in range(1, MAX_TOKENS + 1):
        for rule in ("step", "to frontend", "flush", "to client"):
            line.play(rule, 0)
        for number in range(NUM_REQUESTS):
            while line.streams[number].has_news:
                line.play("take", number)
            assert len(line.taken[number]) == step
            assert set(line.row_ends[number].values()) <= {NUM_PROMPT_TOKENS + step - 1}
    line.finish()
