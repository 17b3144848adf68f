"""The three ends of streaming in one process: engine, frontend and client, with queues that refuse and lose in between.

Whatever happens on the way, a caller gets each token once, in order, and in the end all of them; and however little it
takes, no more messages are on their way to it than its window has tokens.
"""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from mmcached.client.results import Generation
from mmcached.client.token_stream import TokenStream
from mmcached.engine import Request
from mmcached.engine.token_streams import TokenStreams as EngineStreams
from mmcached.frontend.open_requests import OpenRequest
from mmcached.frontend.token_streams import TokenStreams as FrontendStreams
from mmcached.wire.channels import decode_frames, encode_frames, make_decoder
from mmcached.wire.messages.client import Generated, ToClient, Tokens
from mmcached.wire.messages.frontend import FromEngine, Generate, TokensCommitted
from tests.engine.builders import generate

WINDOW = 4
NUM_REQUESTS = 2
MAX_TOKENS = 30
CLIENT = "c" * 32
PEER = b"peer"

Rule = tuple[str, int]
RULES = st.lists(
    st.tuples(
        st.sampled_from(
            ["step", "step", "refused step", "preempt", "to frontend", "flush", "full", "to client", "take"]
        ),
        st.integers(0, NUM_REQUESTS - 1),
    ),
    max_size=120,
)


class Line:
    """Engine, frontend and client; each rule is one thing that one of them does."""

    def __init__(self) -> None:
        self.engine = EngineStreams()
        self.frontend = FrontendStreams(self._send)
        self.requests: list[Request] = []
        self.streams: list[TokenStream] = []
        self.taken: list[list[int]] = []
        self.to_frontend: deque[TokensCommitted] = deque()
        self.to_client: deque[Tokens] = deque()
        self.is_full = False
        for number in range(NUM_REQUESTS):
            message = Generate(CLIENT, 50 + number, "x", MAX_TOKENS, None, 5.0, stream_window=WINDOW)
            self.requests.append(generate(number, 3, max_tokens=MAX_TOKENS))
            self.engine.open(number)
            self.frontend.open(OpenRequest(number, PEER, message, [], 9.0))
            self.streams.append(TokenStream(message))
            self.taken.append([])

    def _send(self, peer: bytes, message: Tokens) -> bool:
        assert peer == PEER
        if not self.is_full:
            arrived, _ = decode_frames(encode_frames(message), make_decoder(ToClient))
            self.to_client.append(arrived)
        return not self.is_full

    def play(self, rule: str, number: int) -> None:
        match rule:
            case "step" | "refused step":
                self._step(is_queued=rule == "step")
            case "preempt":
                self.requests[number].num_computed_tokens = 0
            case "to frontend" if self.to_frontend:
                for part in self.to_frontend.popleft().streams:
                    self.frontend.committed(part)
            case "flush" | "full":
                self.is_full = rule == "full"
                self.frontend.flush()
            case "to client" if self.to_client:
                for piece in self.to_client.popleft().streams:
                    self.streams[piece.request_id - 50].put(piece)
            case "take" if self.streams[number].has_news:
                self._take(number)
        self.frontend.check_integrity()
        assert len(self.to_client) <= NUM_REQUESTS * WINDOW

    def _step(self, *, is_queued: bool) -> None:
        """Commit a token of each generation that goes on."""
        going = [request for request in self.requests if request.num_tokens < request.num_prompt_tokens + MAX_TOKENS]
        for request in going:
            request.append_output_token(1000 * request.request_id + request.num_tokens)
        streams = self.engine.untold(going)
        if streams and is_queued:
            arrived, _ = decode_frames(encode_frames(TokensCommitted(streams)), make_decoder(FromEngine))
            self.to_frontend.append(arrived)
            self.engine.told(streams)

    def lose(self) -> None:
        """The engine's connection is lost, with all that was under way over it."""
        self.to_frontend.clear()

    def _take(self, number: int) -> Generation | None:
        piece = self.streams[number].take()
        receipt = self.streams[number].take_receipt()
        if receipt is not None:
            self.frontend.taken(receipt.request_id - 50, receipt.num_tokens)
        if isinstance(piece, Generation):
            return piece
        self.taken[number] += piece
        assert self.taken[number] == self.requests[number].output_token_ids[: len(self.taken[number])]
        return None

    def finish(self) -> None:
        """Let each generation be answered, overtaken by nothing that was sent before, and take what is left."""
        while self.to_client:
            self.play("to client", 0)
        for number, request in enumerate(self.requests):
            self.frontend.close(number)
            answer = Generated(50 + number, request.output_token_ids, "length", 3, 0)
            self.streams[number].answer(answer, [])
            while (generation := self._take(number)) is None:
                pass
            assert self.taken[number] == generation.tokens == request.output_token_ids
            assert not self.streams[number].is_open
        assert len(self.frontend) == 0


@given(RULES, st.integers(0, 120))
def test_each_token_is_taken_once_and_in_order_whatever_happens_on_the_way(rules: list[Rule], lost_at: int) -> None:
    line = Line()
    for index, (rule, number) in enumerate(rules):
        if index == lost_at:
            line.lose()
        line.play(rule, number)
    line.finish()


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
            line.play("take", number)
            assert len(line.taken[number]) == step
    line.finish()
