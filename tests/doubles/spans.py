"""A tracer provider that keeps what its spans have become."""

from __future__ import annotations

from functools import partial

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mmcached.wire.tracing import RequestSpan, StartSpan, tracer_of


class MemorySpans:
    """A provider, and the spans that have ended.

    Attributes:
        start: begins the span of a request, as a role's does.
    """

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.tracer = tracer_of(self.provider)
        self.start: StartSpan = partial(RequestSpan, self.tracer)

    def take_all(self) -> list[ReadableSpan]:
        """Return the spans that have ended since, in that order."""
        spans = list(self._memory.get_finished_spans())
        self._memory.clear()
        return spans

    def take(self) -> ReadableSpan:
        """Return the only span that has ended since."""
        (span,) = self.take_all()
        return span
