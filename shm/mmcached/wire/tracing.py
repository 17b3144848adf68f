"""OpenTelemetry spans of requests.

    client span ──traceparent in Encode, Generate──> frontend span ──traceparent in AddRequest──> engine span
                                                        └─ its phases                                └─ its phases

Imports OpenTelemetry, so it is imported only where tracing is on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib import metadata

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Attributes = Mapping[str, str | int | float | bool]

_PROPAGATOR = TraceContextTextMapPropagator()


def tracer_of(provider: TracerProvider) -> Tracer:
    try:
        version = metadata.version("mmcached")
    except metadata.PackageNotFoundError:  # a checkout that is run from its path
        version = None
    return provider.get_tracer("mmcached", version)


def traceparent_of(span: Span) -> str:
    """Return the W3C `traceparent` of a span; "" if the span belongs to no trace."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=set_span_in_context(span, Context()))
    return carrier.get("traceparent", "")


def set_error(span: Span, kind: str) -> None:
    """Mark a span as failed. Error texts are left out, because they may contain keys."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


class RequestSpan:
    """One request in one process: a span, and a child span of each ended phase; `traceparent` "" begins a trace."""

    def __init__(self, tracer: Tracer, name: str, traceparent: str, attributes: Attributes) -> None:
        parent = _PROPAGATOR.extract({"traceparent": traceparent}, context=Context())
        self._tracer = tracer
        self._span = tracer.start_span(name, parent, SpanKind.SERVER, attributes)
        self._phase_ns = time.time_ns()

    @property
    def traceparent(self) -> str:
        return traceparent_of(self._span)

    def end_phase(self, name: str, took_s: float | None = None, attributes: Attributes | None = None) -> None:
        """Record a phase that ends now, as a child span; `took_s` in seconds, None: since the last phase."""
        now_ns = time.time_ns()
        start_ns = self._phase_ns if took_s is None else now_ns - round(took_s * 1e9)
        context = set_span_in_context(self._span, Context())
        self._tracer.start_span(name, context, attributes=attributes, start_time=start_ns).end(now_ns)
        self._phase_ns = now_ns

    def end(self, error: str = "") -> None:
        """End the span of the request; `error` is the code of the error that has ended it."""
        if error:
            set_error(self._span, error)
        self._span.end()


StartSpan = Callable[[str, str, Attributes], RequestSpan]
"""Begins the span of a request: its name, the `traceparent` that came with it, and attributes."""
