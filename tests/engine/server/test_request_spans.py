"""Whatever ends a request in the engine, its span has ended with it, and has the queue and the encoding as children."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CorruptImage
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend_from_engines as from_engine
from tests.clock import Clock
from tests.doubles.spans import MemorySpans
from tests.engine.fake_peers import Bench

CONFIG = ServiceConfig(max_model_len=64, num_kv_blocks=32, step_timeout_s=100.0)
STEP_S = 2


@pytest.fixture
def spans() -> MemorySpans:
    return MemorySpans()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bench(run_dir: Path, clock: Clock, spans: MemorySpans) -> Iterator[Bench]:
    with Bench(run_dir, CONFIG, clock, start_span=spans.start) as bench:
        bench.connect()
        yield bench


def answer(bench: Bench, clock: Clock) -> None:
    for _ in range(2):
        plans = bench.plans()
        clock.now += STEP_S
        bench.answer(plans)
    bench.expect(from_engine.RequestGenerated)


def fail(bench: Bench, clock: Clock) -> None:
    bench.run_step(error=CorruptImage("images[0]", "m", "bad"))
    bench.expect(from_engine.RequestFailed)


def abort(bench: Bench, clock: Clock) -> None:
    plans = bench.plans()
    bench.send(to_engine.AbortRequest(1))
    bench.turns()
    bench.answer(plans)
    bench.turns()


@pytest.mark.parametrize(("end", "error"), [(answer, None), (fail, CorruptImage.code), (abort, "cancelled")])
def test_each_end_of_a_request_ends_its_span(
    bench: Bench,
    clock: Clock,
    spans: MemorySpans,
    end: Callable[[Bench, Clock], None],
    error: str | None,
) -> None:
    bench.add(1, bench.put_item("a"), max_tokens=2)
    end(bench, clock)
    *children, span = spans.take_all()
    assert span.name == "mmcached.engine.generate"
    assert (span.attributes or {}).get("error.type") == error
    names = ["mmcached.engine.queue", "mmcached.engine.step"]
    assert [child.name for child in children] == (names if error is None else names[:1])
    assert all(child.parent == span.context for child in children)
    if error is None:
        step = children[-1]
        assert step.attributes == {"mmcached.num_items": 1, "mmcached.num_loaded": 0}, "of two, the one that encoded"
        assert step.start_time is not None
        assert step.end_time == step.start_time + STEP_S * 10**9
