"""Sends the spans of a role to an OTLP/HTTP collector, as configured and as the variables `OTEL_*` say.

A finished span waits in a bounded queue for a thread of OpenTelemetry's SDK, which sends it. While the queue is full,
or the collector does not answer, spans are dropped: no request waits or fails.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError

if TYPE_CHECKING:
    from mmcached.wire.tracing import StartSpan

LAST_EXPORT_S = 1.0
"""How long a role's shutdown waits until its last spans are sent."""


@contextmanager
def exported_spans(config: ServiceConfig, role: str) -> Iterator[StartSpan | None]:
    """Yield a function that begins exported spans; None, without any import, if no endpoint is configured.

    Args:
        role: Name of this process, an attribute of its spans' resource.

    Raises:
        ConfigError: The SDK refuses a variable of the environment.
    """
    endpoint = config.otlp_traces_endpoint
    if not endpoint:
        yield None
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from mmcached.wire.tracing import RequestSpan, tracer_of

    resource = Resource.create({"mmcached.role": role})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # the environment names none
        resource = resource.merge(Resource({SERVICE_NAME: "mmcached"}))
    try:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    except ValueError as error:
        limit = f"a variable OTEL_* of the environment is invalid: {error}"
        raise ConfigError("otlp_traces_endpoint", endpoint, limit) from error
    try:
        yield partial(RequestSpan, tracer_of(provider))
    finally:
        # The SDK waits half a minute for a collector that does not answer.
        last = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(LAST_EXPORT_S)
