"""An OTLP/HTTP receiver of spans on a port of this machine, which parses what comes as a collector does."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from mmcached.wire.closeable import Closeable


@dataclass(frozen=True)
class Received:
    """A span that has come.

    Attributes:
        resource: attributes of the process that has sent it.
        start_ns, end_ns: Unix time.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    has_failed: bool
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)
    resource: dict[str, Any] = field(default_factory=dict)


class OtlpReceiver(Closeable):
    """Receives spans in threads until it is closed.

    Attributes:
        spans: those that have come.
        answers: cleared, no request is answered until it is set again.
        num_requests: how many requests have begun.
    """

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.answers = threading.Event()
        self.answers.set()
        self.num_requests = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.num_requests += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.answers.wait()
                receiver.spans += spans_in(body) if self.path == "/v1/traces" else []
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *values: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="receiver")
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def in_trace(self, trace_id: str) -> dict[str, Received]:
        """Return the spans of a trace by name."""
        return {span.name: span for span in list(self.spans) if span.trace_id == trace_id}

    def close(self) -> None:
        self.answers.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self


def spans_in(body: bytes) -> list[Received]:
    """Return the spans of an export request."""
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Received(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.status.code == 2,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            _values(span.attributes),
            _values(of_resource.resource.attributes),
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
