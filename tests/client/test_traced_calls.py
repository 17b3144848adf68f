"""A client with a tracer makes spans of calls, with the caller's span as their parent; one without imports nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import db_attributes, error_attributes

from mmcached.client import AsyncClient, Client, InvalidRequest
from mmcached.client.traced_calls import TracedCalls
from mmcached.wire.errors import DeadlineExceeded
from mmcached.wire.messages.frontend import Encode, Generate
from tests.client.blocking import Make
from tests.client.services import StoreService
from tests.client.test_known_outputs import FILES, put
from tests.doubles.spans import MemorySpans

PROCESS_S = 60
RECORD = {"x": np.zeros(1000, np.float32), "nested": [np.zeros(3, np.uint8), "text"]}
NUM_BYTES = 4003


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span, without its names of operations."""
    return {name: value for name, value in (span.attributes or {}).items() if not name.startswith(("db.", "gen_ai"))}


def place_of(span: ReadableSpan) -> str:
    """Return the `traceparent` of a span without its flags."""
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}"


@pytest.fixture
def spans() -> MemorySpans:
    return MemorySpans()


@pytest.fixture
def traced(service: StoreService, make: Make, run_dir: Path, spans: MemorySpans) -> Iterator[Any]:
    service.encoder_fingerprint = "f"
    with make(run_dir, tracer_provider=spans.provider, tenant="me") as client:
        yield client


def test_a_put_and_a_get_say_how_much_and_for_whom(traced: Any, spans: MemorySpans) -> None:
    traced.put("secret key", RECORD)
    span = spans.take()
    attributes = dict(span.attributes or {})
    nbytes = attributes.pop("mmcached.bytes")
    assert isinstance(nbytes, int)
    assert nbytes >= NUM_BYTES, "as it is stored"
    assert (span.name, span.kind) == ("mmcached.put", trace.SpanKind.CLIENT)
    assert attributes == {
        db_attributes.DB_SYSTEM_NAME: "mmcached",
        db_attributes.DB_OPERATION_NAME: "put",
        "mmcached.tenant": "me",
        "mmcached.outcome": "kept",
    }
    assert traced.get("secret key") is not None
    assert attributes_of(spans.take()) == {"mmcached.tenant": "me", "mmcached.hit": True, "mmcached.bytes": NUM_BYTES}
    assert traced.get("secret key", tenant="another") is None
    assert attributes_of(spans.take()) == {"mmcached.tenant": "another", "mmcached.hit": False}


def test_a_computation_is_no_hit_and_its_spans_are_children(
    service: StoreService, run_dir: Path, spans: MemorySpans
) -> None:
    def compute() -> dict[str, Any]:
        with spans.tracer.start_as_current_span("tower"):
            return RECORD

    with Client(run_dir, tracer_provider=spans.provider) as client:
        client.get_or_compute("key", compute)
        tower, call = spans.take_all()
        client.get_or_compute("key", compute)
        found = attributes_of(spans.take())
    assert (tower.name, call.name) == ("tower", "mmcached.get_or_compute")
    assert call.attributes is not None
    assert call.attributes["mmcached.hit"] is False
    assert tower.parent == call.context
    assert found == {"mmcached.hit": True, "mmcached.bytes": NUM_BYTES}


def test_an_asyncio_client_awaits_within_its_span(service: StoreService, run_dir: Path, spans: MemorySpans) -> None:
    async def compute() -> Any:
        with spans.tracer.start_as_current_span("tower"):
            await asyncio.sleep(0)
            return np.zeros(3)

    async def ask(client: AsyncClient, key: str) -> None:
        with spans.tracer.start_as_current_span(f"caller of {key}"):
            await client.get_or_compute(key, compute)
            await client.get(f"no such {key}")

    async def main() -> None:
        async with AsyncClient(run_dir, tracer_provider=spans.provider) as client:
            await asyncio.gather(ask(client, "a"), ask(client, "b"))
            assert trace.get_current_span() is trace.INVALID_SPAN

    asyncio.run(main())
    finished = spans.take_all()
    names = {span.context.span_id: span.name for span in finished if span.context is not None}
    found = sorted((names[span.parent.span_id] if span.parent else "", span.name) for span in finished)
    assert found == sorted(
        [("", f"caller of {key}") for key in "ab"]
        + [(f"caller of {key}", f"mmcached.{verb}") for key in "ab" for verb in ("get", "get_or_compute")]
        + [("mmcached.get_or_compute", "tower")] * 2
    )


def test_an_encode_carries_its_context_and_says_what_was_known(
    service: StoreService, traced: Any, run_dir: Path, spans: MemorySpans
) -> None:
    put(run_dir, FILES[0], tenant="me")
    traced.encode([FILES[0]])
    assert attributes_of(spans.take()) == {
        "mmcached.tenant": "me",
        "mmcached.hit": True,
        "mmcached.num_hits": 1,
        "mmcached.num_items": 1,
    }
    assert service.count(Encode) == 0
    traced.encode(FILES)
    span = spans.take()
    (message,) = (message for message in service.received if isinstance(message, Encode))
    assert message.traceparent.rpartition("-")[0] == place_of(span)
    assert span.attributes is not None
    assert (span.attributes["mmcached.hit"], span.attributes["mmcached.num_hits"]) == (False, 1)
    assert span.attributes[gen_ai_attributes.GEN_AI_OPERATION_NAME] == "embeddings"


def test_generations_carry_it_too_also_streamed_ones(service: StoreService, traced: Any, spans: MemorySpans) -> None:
    asked = []
    for stream in (False, True):
        if stream:
            *_, generation = traced.generate_stream([1, 2, 3])
        else:
            generation = traced.generate([1, 2, 3])
        assert generation.tokens == [1, 2, 3]
        span = spans.take()
        assert span.name == "mmcached.generate"
        asked.append(place_of(span))
        assert span.attributes is not None
        assert span.attributes[gen_ai_attributes.GEN_AI_OPERATION_NAME] == "text_completion"
        assert span.attributes[gen_ai_attributes.GEN_AI_USAGE_OUTPUT_TOKENS] == 3
        assert span.attributes[gen_ai_attributes.GEN_AI_USAGE_INPUT_TOKENS] == 1
        assert span.attributes[gen_ai_attributes.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS] == 0
    said = [message.traceparent for message in service.received if isinstance(message, Generate)]
    assert [traceparent.rpartition("-")[0] for traceparent in said] == asked


def test_a_stream_that_is_left_early_has_ended(service: StoreService, traced: Any, spans: MemorySpans) -> None:
    pieces = traced.generate_stream([1, 2, 3])
    next(pieces)
    pieces.close()
    assert spans.take().name == "mmcached.generate"
    traced.generate_stream([1])
    assert spans.take_all() == [], "nobody has asked the service for anything"


def test_an_error_is_told_by_its_kind_without_its_text(service: StoreService, traced: Any, spans: MemorySpans) -> None:
    def failing() -> Any:
        raise ZeroDivisionError("secret")

    service.hold = (Generate,)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: traced.get_or_compute("secret key", failing), "ZeroDivisionError"),
        (lambda: traced.put("secret key", {"secret": object()}), "invalid_request"),
        (lambda: traced.generate([1], timeout_s=0.05), "deadline_exceeded"),
        (lambda: next(traced.generate_stream([1], timeout_s=0.05)), "deadline_exceeded"),
        (lambda: next(traced.generate_stream([1], max_tokens=-1)), "invalid_request"),
    ]
    for call, error in calls:
        with pytest.raises((ZeroDivisionError, InvalidRequest, DeadlineExceeded)):
            call()
        span = spans.take()
        assert not span.status.is_ok
        assert (span.status.description, list(span.events)) == (None, [])
        assert span.attributes is not None
        assert span.attributes[error_attributes.ERROR_TYPE] == error


def test_a_callers_span_that_is_not_sampled_makes_none(
    service: StoreService, run_dir: Path, spans: MemorySpans
) -> None:
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(0)))
    with Client(run_dir, tracer_provider=spans.provider) as client, trace.use_span(unsampled):
        client.encode([FILES[0]])
    assert spans.take_all() == []
    (message,) = (message for message in service.received if isinstance(message, Encode))
    assert message.traceparent.startswith(f"00-{1:032x}-")
    assert message.traceparent.endswith("-00")


def test_what_is_no_provider_is_refused(run_dir: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Client(run_dir, tracer_provider="http://localhost:4318")  # type: ignore[arg-type]
    assert refused.value.details["field"] == "tracer_provider"


def test_every_traced_call_is_a_call() -> None:
    traced = [name for name in vars(TracedCalls) if not name.startswith("_")]
    assert sorted(traced) == ["encode", "generate", "generate_stream", "get", "get_or_compute", "put"]


def test_a_client_without_a_tracer_imports_nothing(service: StoreService, run_dir: Path) -> None:
    code = f"""
import sys
from mmcached.client import Client
with Client({str(run_dir)!r}, fail_open=False) as client:
    client.put("key", {{"n": 1}})
    client.get("key", tensors="numpy")
    client.encode([b"8 bytes."], tensors="numpy")
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    command = [sys.executable, "-c", code]
    child = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PROCESS_S)
    assert child.stdout.strip() == "[]"


def test_a_forked_child_exports_spans_of_its_own(service: StoreService, run_dir: Path) -> None:
    """The queue of the parent's spans, and the thread that empties it, are not the child's."""
    code = f"""
import os, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from mmcached.client import Client
memory, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(BatchSpanProcessor(memory))
with Client({str(run_dir)!r}, fail_open=False, tracer_provider=provider) as client:
    client.put("key", {{"n": 1}})
    child = os.fork()
    assert client.get("key") is not None
    provider.force_flush()
    names = [span.name for span in memory.get_finished_spans()]
    if not child:
        os._exit(0 if names == ["mmcached.get"] else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, names)
provider.shutdown()
"""
    command = [sys.executable, "-c", code]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROCESS_S)
    assert child.stdout.strip() == "0 ['mmcached.put', 'mmcached.get']", child.stderr
