"""The span of a request has the parent that its message names, and a child for each phase."""

from __future__ import annotations

import pytest
from opentelemetry.trace import INVALID_SPAN, SpanKind

from mmcached.wire.tracing import traceparent_of
from tests.doubles.spans import MemorySpans

TRACE_ID, SPAN_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACEPARENT = f"00-{TRACE_ID:032x}-{SPAN_ID:016x}-01"


@pytest.fixture
def spans() -> MemorySpans:
    return MemorySpans()


def test_phases_are_children_that_follow_each_other(spans: MemorySpans) -> None:
    request = spans.start("request", TRACEPARENT, {"n": 1})
    request.end_phase("first")
    request.end_phase("second", attributes={"m": 2})
    request.end_phase("third", took_s=1.5)
    request.end()
    first, second, third, whole = spans.take_all()
    assert whole.parent is not None
    assert (whole.parent.trace_id, whole.parent.span_id, whole.kind) == (TRACE_ID, SPAN_ID, SpanKind.SERVER)
    assert all(phase.parent == whole.context for phase in (first, second, third))
    assert request.traceparent.startswith(f"00-{TRACE_ID:032x}-")
    assert first.end_time == second.start_time
    assert second.attributes == {"m": 2}
    assert third.end_time is not None
    assert third.start_time == third.end_time - 1_500_000_000
    assert whole.status.is_ok


def test_an_error_is_a_code(spans: MemorySpans) -> None:
    spans.start("request", "", {}).end("deadline_exceeded")
    (span,) = spans.take_all()
    assert span.parent is None
    assert not span.status.is_ok
    assert span.attributes == {"error.type": "deadline_exceeded"}


def test_what_is_not_sampled_is_not_recorded_and_says_so_further_on(spans: MemorySpans) -> None:
    request = spans.start("request", f"{TRACEPARENT[:-2]}00", {})
    request.end_phase("phase")
    request.end()
    assert spans.take_all() == []
    assert request.traceparent.startswith(f"00-{TRACE_ID:032x}-")
    assert request.traceparent.endswith("-00")


def test_a_span_of_no_trace_has_no_traceparent() -> None:
    assert traceparent_of(INVALID_SPAN) == ""
