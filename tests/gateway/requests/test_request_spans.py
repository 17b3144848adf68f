"""Whatever ends a request, it has one span, which has ended with it and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.doubles.spans import MemorySpans
from tests.frontend.fake_peers import Bench, png
from tests.frontend.integrity import check_frontend
from tests.wire.examples import ERROR

CONFIG = ServiceConfig(
    mm_processor_cache_gb=1 / 1024, mm_shm_cache_max_object_size_mb=1, store_gb=0, max_num_requests=1
)
TICK_S = 0.01  # deaths are looked at now and then


@pytest.fixture
def spans() -> MemorySpans:
    return MemorySpans()


@pytest.fixture
def bench(run_dir: Path, clock: Clock, spans: MemorySpans) -> Iterator[Bench]:
    with Bench(run_dir, CONFIG, clock, start_span=spans.start) as bench:
        yield bench
        check_frontend(bench.frontend)


def answer(bench: Bench, engine: WireEngine, number: int) -> None:
    engine.channel.send(from_engine.RequestGenerated(number, [5], "length", 0))
    bench.answer(to_client.Generated)


def fail(bench: Bench, engine: WireEngine, number: int) -> None:
    engine.channel.send(from_engine.RequestFailed(number, ERROR))
    bench.answer(to_client.Failed)


def miss(bench: Bench, engine: WireEngine, number: int) -> None:
    engine.channel.send(from_engine.RequestMissed(number, []))
    add = bench.from_frontend(engine, to_engine.AddRequest)
    answer(bench, engine, add.request_id)


def cancel(bench: Bench, engine: WireEngine, number: int) -> None:
    bench.client.send(to_frontend.Cancel(bench.client_id, 1))
    bench.from_frontend(engine, to_engine.AbortRequest)


def lose_engine(bench: Bench, engine: WireEngine, number: int) -> None:
    bench.engine_dies(engine)
    bench.answer(to_client.Failed)


def lose_client(bench: Bench, engine: WireEngine, number: int) -> None:
    bench.client_dies()
    bench.from_frontend(engine, to_engine.AbortRequest)


@pytest.mark.parametrize(
    ("end", "error", "phases"),
    [
        (answer, None, ["preprocess"]),
        (miss, None, ["preprocess", "missed", "preprocess"]),
        (fail, ERROR.code, ["preprocess"]),
        (cancel, "cancelled", ["preprocess"]),
        (lose_engine, "request_aborted", ["preprocess"]),
        (lose_client, "cancelled", ["preprocess"]),
    ],
)
def test_each_end_of_a_request_ends_its_span(
    bench: Bench,
    spans: MemorySpans,
    end: Callable[[Bench, WireEngine, int], None],
    error: str | None,
    phases: list[str],
) -> None:
    engine = bench.connect_engine()
    bench.generate(1, [png(1)])
    add = bench.from_frontend(engine, to_engine.AddRequest)
    end(bench, engine, add.request_id)
    *children, span = spans.take_all()
    assert span.context is not None
    assert f"{span.context.trace_id:032x}-{span.context.span_id:016x}" in add.traceparent
    assert [child.name for child in children] == [f"mmcached.frontend.{phase}" for phase in phases]
    assert error_of(span) == error


def test_what_is_refused_has_a_span_too(bench: Bench, spans: MemorySpans) -> None:
    bench.generate(1, [])
    bench.generate(2, [])
    assert bench.answer(to_client.Failed).error.code == "service_unavailable"
    (span,) = spans.take_all()
    assert error_of(span) == "service_unavailable"


def test_a_deadline_ends_it(bench: Bench, clock: Clock, spans: MemorySpans) -> None:
    bench.generate(1, [], timeout_s=5.0)
    bench.stats()
    clock.now += 6
    bench.answer(to_client.Failed)
    (span,) = spans.take_all()
    assert error_of(span) == "deadline_exceeded"


def error_of(span: ReadableSpan) -> object:
    assert span.status.is_ok == ("error.type" not in (span.attributes or {}))
    return (span.attributes or {}).get("error.type")
