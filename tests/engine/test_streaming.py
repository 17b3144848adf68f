"""Streamed generations and back-pressure in an EngineServer between a fake frontend and fake workers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ChannelFull, InvariantError, error_from_wire, error_to_wire
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages import worker as to_worker
from mmcached.wire.messages.frontend_from_engines import RequestGenerated, TokensCommitted
from mmcached.wire.messages.parts import RequestRows, Rows, RowsWanted, StreamedTokens, Tensor
from mmcached.wire.sockets.dialer import Dialer
from tests.clock import Clock
from tests.engine.fake_peers import Bench
from tests.engine.integrity import check_scheduler

CONFIG = ServiceConfig(max_model_len=64, num_kv_blocks=32, max_num_requests=3)


@pytest.fixture
def bench(run_dir: Path) -> Iterator[Bench]:
    with Bench(run_dir, CONFIG, Clock()) as bench:
        bench.connect()
        yield bench


def run_step(bench: Bench, token: int) -> to_worker.StepPlan:
    """Let both ranks run the next step; it samples `token` for everybody. Rank 0 returns the rows that are wanted:
    in the place of each its position.
    """
    plans = bench.plans()
    for worker, plan in zip(bench.workers, plans, strict=True):
        output, frames = worker.output(plan, token=token), list[bytes]()
        for chunk in plan.chunks if worker.rank == 0 else ():
            end = chunk.num_computed_tokens + len(chunk.token_ids)
            positions = range(chunk.first_row, end)
            for key in chunk.row_keys if positions else ():
                tensor = Tensor(len(frames), "int32", (len(positions), 1))
                frames.append(struct.pack(f"<{len(positions)}i", *positions))
                output.rows.append(RequestRows(chunk.request_id, Rows(key, chunk.first_row, tensor)))
        worker.channel.send(output, frames)
    return plans[0]


def add_for_rows(bench: Bench, request_id: int, wanted: RowsWanted, *, max_tokens: int, num_tokens: int = 5) -> None:
    """Send a streamed request whose client wants rows."""
    options: dict[str, Any] = {"is_streamed": True}
    prompt = list(range(65, 65 + num_tokens))
    add = to_engine.AddRequest(request_id, "generate", prompt, [], max_tokens, wanted, **options)
    bench.send(add)


Sent = tuple[int, str, int, list[int]]
"""Request, key, first position, values."""

DELTA = RowsWanted(["hidden_states"], delivery="delta")


def rows_in(bench: Bench, message: TokensCommitted | RequestGenerated) -> list[Sent]:
    """Return the rows of the message that came last."""
    if isinstance(message, TokensCommitted):
        parts = [(part.request_id, part.rows) for part in message.rows]
    else:
        parts = [(message.request_id, rows) for rows in message.rows]
    found = []
    for request_id, rows in parts:
        values = struct.unpack(f"<{rows.tensor.shape[0]}i", bench.payload[rows.tensor.frame])
        found.append((request_id, rows.key, rows.first, list(values)))
    return found


def tokens_of(bench: Bench) -> list[StreamedTokens]:
    return bench.expect(TokensCommitted).streams


def refuse(monkeypatch: pytest.MonkeyPatch, num_messages: int) -> None:
    """Have the frontend's queue be full for the first messages of streams."""
    send, num_refused = Dialer.send, 0

    def send_later(channel: Dialer[Any], message: object, payload: Any = ()) -> None:
        nonlocal num_refused
        if isinstance(message, TokensCommitted) and num_refused < num_messages:
            num_refused += 1
            raise ChannelFull("the frontend does not read")
        send(channel, message, payload)

    monkeypatch.setattr(Dialer, "send", send_later)


def test_what_could_not_be_queued_comes_with_the_next_step(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, 2)
    add_for_rows(bench, 1, DELTA, max_tokens=5)
    for token in (65, 66, 67, 68):
        run_step(bench, token)
    for first, tokens, row, values in ((0, [65, 66, 67], 0, [0, 1, 2, 3, 4, 5, 6]), (3, [68], 7, [7])):
        message = bench.expect(TokensCommitted)
        assert message.streams == [StreamedTokens(1, first, tokens)]
        assert rows_in(bench, message) == [(1, "hidden_states", row, values)]


def test_abort_and_another_frontend_end_the_streams(bench: Bench) -> None:
    bench.add(1, max_tokens=9, is_streamed=True)
    bench.add(2, max_tokens=9, is_streamed=True)
    run_step(bench, 65)
    tokens_of(bench)
    bench.send(to_engine.AbortRequest(1))
    run_step(bench, 66)
    while [part.request_id for part in tokens_of(bench)] != [2]:
        run_step(bench, 67)
    bench.send(to_engine.Greeted(2))
    bench.expect(from_engine.EngineReady)
    check_scheduler(bench.engine._scheduler)


def test_replaced_worker_sends_nothing_twice(bench: Bench) -> None:
    """The request is computed anew from token 0 on, with the tokens that it has; only new tokens and rows are sent."""
    add_for_rows(bench, 1, DELTA, max_tokens=4)
    for token in (65, 66):
        run_step(bench, token)
        tokens_of(bench)
    plans = bench.plans()  # a step is in flight
    bench.workers[0].channel.send(bench.workers[0].output(plans[0]))
    bench.attach(bench.replace(1))
    for worker in bench.workers:
        bench.from_engine(worker, to_worker.ClearCaches)
    plan = run_step(bench, 67)
    assert [(chunk.num_computed_tokens, chunk.token_ids[-2:]) for chunk in plan.chunks] == [(0, [65, 66])]
    message = bench.expect(TokensCommitted)
    assert message.streams == [StreamedTokens(1, 2, [67])]
    assert rows_in(bench, message) == [(1, "hidden_states", 6, [6])]


def test_more_requests_than_the_engine_takes_are_refused_retryably_and_their_leases_return(bench: Bench) -> None:
    for request_id in (1, 2, 3):
        bench.add(request_id, max_tokens=1)
    bench.add(4, bench.put_item("a"))
    refused = bench.expect(from_engine.RequestFailed)
    assert refused.request_id == 4
    error = error_from_wire(refused.error)
    assert (error.code, error.retryable) == ("service_unavailable", True)
    assert error.details == {"field": "max_num_requests", "value": 3, "limit": 3}
    assert bench.leases == 0
    bench.send(to_engine.AbortRequest(3))
    bench.add(5)

    def answered() -> set[int]:
        return {message.request_id for message, _ in bench.received if isinstance(message, RequestGenerated)}

    while len(answered()) < 3:
        run_step(bench, 65)
        bench.pump(lambda: len(answered()) == 3 or bench.workers[0].channel.wait(0))
    assert answered() == {1, 2, 5}


def test_a_worker_that_contradicts_the_engine_ends_the_engine(bench: Bench) -> None:
    """It was told to use what it does not have; whatever the others say, no later answer could be trusted."""
    bench.add(1)
    first, second = bench.workers
    first.channel.send(first.output(bench.plan(0)))
    second.channel.send(second.failure(bench.plan(1), error_to_wire(InvariantError("encoder output 'k' is not held"))))
    with pytest.raises(InvariantError, match="rank 1 contradicts the engine: encoder output 'k'"):
        bench.expect(RequestGenerated)
    assert from_engine.RequestFailed not in bench.kinds()


# ---- rows


@pytest.fixture
def chunky(run_dir: Path) -> Iterator[Bench]:
    """A prompt is computed in chunks of four."""
    with Bench(run_dir, msgspec.structs.replace(CONFIG, max_num_batched_tokens=4), Clock()) as bench:
        bench.connect()
        yield bench


def test_rows_leave_in_the_step_that_commits_them_and_the_last_with_the_answer(chunky: Bench) -> None:
    add_for_rows(chunky, 1, RowsWanted(DELTA.keys, 2, "delta"), max_tokens=2, num_tokens=10)
    wanted: list[tuple[list[int], list[StreamedTokens]]] = [
        ([2, 3], []),
        ([4, 5, 6, 7], []),
        ([8, 9], [StreamedTokens(1, 0, [65])]),
    ]
    for values, tokens in wanted:
        run_step(chunky, 65)
        message = chunky.expect(TokensCommitted)
        assert rows_in(chunky, message) == [(1, "hidden_states", values[0], values)]
        assert message.streams == tokens
    run_step(chunky, 66)
    answer = chunky.expect(RequestGenerated)
    assert (answer.token_ids, rows_in(chunky, answer)) == ([65, 66], [(1, "hidden_states", 10, [10])])
    assert TokensCommitted not in chunky.kinds()
