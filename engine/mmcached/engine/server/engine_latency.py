"""Measures queue times of requests and durations of steps, and creates tracing spans for both.

A request waits from its arrival to its first step; if it starts over, it is counted once. A step lasts until its
commit. A request's span has a child for the queue, and one for each step that encoded items of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.wire.latency import Latency
from mmcached.wire.slow_log import SlowCalls

if TYPE_CHECKING:
    from mmcached.wire.tracing import RequestSpan, StartSpan

log = structlog.get_logger("mmcached.engine")


class EngineLatency:
    """Latencies of one engine; `slow_ms` 0 turns the slow log off, `start_span` None turns tracing off."""

    def __init__(self, clock: Callable[[], float], *, slow_ms: float, start_span: StartSpan | None = None) -> None:
        self.slow = SlowCalls(slow_ms, log.warning)
        self.queue = Latency()
        self.step = Latency()
        self._clock = clock
        self._arrived: dict[int, float] = {}
        self._started = 0.0
        self._start_span = start_span
        self._spans: dict[int, RequestSpan] = {}

    def arrive(self, request_id: int, kind: str, traceparent: str) -> None:
        """Record the arrival of a request; `traceparent` names the sender's span."""
        self._arrived[request_id] = self._clock()
        if self._start_span is not None:
            self._spans[request_id] = self._start_span(f"mmcached.engine.{kind}", traceparent, {})

    def end_request(self, request_id: int, error: str = "") -> None:
        """End the span of a request; `error` is the code of the error that ended it."""
        self._arrived.pop(request_id, None)
        if (span := self._spans.pop(request_id, None)) is not None:
            span.end(error)

    def start(self, step: ScheduledStep) -> None:
        """Record the start of a step, just before its plan is sent."""
        self._started = self._clock()
        if not self._arrived:
            return
        for request in step.requests():
            if (arrived := self._arrived.pop(request.request_id, None)) is not None:
                self.queue.add(self._started - arrived)
                if (span := self._spans.get(request.request_id)) is not None:
                    span.end_phase("mmcached.engine.queue")

    def commit(self, step: ScheduledStep) -> None:
        """Record the duration of the step that was started last."""
        took_s = self._clock() - self._started
        self.step.add(took_s)
        about = {"step": step.step_id, "chunks": len(step.chunks), "encoded": len(step.encode)}
        self.slow.note("step", took_s, step.step_id, **about)
        if self._spans and step.encode:
            self._end_encoding(step, took_s)

    def _end_encoding(self, step: ScheduledStep, took_s: float) -> None:
        """Add a span to each request whose items the step encoded, or whose outputs it loaded from the store."""
        items = Counter(request.request_id for request, *_ in step.encode)
        loads = Counter(request.request_id for request, index, _ in step.encode if request.features[index].has_output)
        for request_id, num_items in items.items():
            if (span := self._spans.get(request_id)) is not None:
                about = {"mmcached.num_items": num_items, "mmcached.num_loaded": loads[request_id]}
                span.end_phase("mmcached.engine.step", took_s, about)
