"""One request is one trace: the client's span, and those that the processes of a service have sent to a receiver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from tests.docs.pages import code
from tests.doubles.otlp_receiver import OtlpReceiver, Received
from tests.frontend.fake_peers import png
from tests.house import REPOSITORY
from tests.integration.processes import eventually, small_config

PROVIDER = TracerProvider(shutdown_on_exit=False)


@pytest.fixture(scope="module")
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def run_dir(receiver: OtlpReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Serve a run directory whose spans go to the receiver at once."""
    folder = tmp_path_factory.mktemp("traced")
    config = msgspec.structs.replace(small_config(world_size=1), otlp_traces_endpoint=receiver.endpoint)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        with ChildService(folder / "s", config, folder / "config.json") as service:
            yield service.run_dir


def trace_of(receiver: OtlpReceiver, span: trace.Span, *names: str) -> dict[str, Received]:
    """Return the spans of a span's trace that the service has sent, once those with these names have come."""
    trace_id = f"{span.get_span_context().trace_id:032x}"
    return eventually(lambda: receiver.in_trace(trace_id), lambda found: {*names} <= {*found}, "spans of the service")


def test_an_encode_reaches_over_all_processes(run_dir: Path, receiver: OtlpReceiver) -> None:
    tracer = PROVIDER.get_tracer("test")
    with Client(run_dir, tracer_provider=PROVIDER) as client, tracer.start_as_current_span("caller") as caller:
        client.encode([png(1), png(2)])
    names = ("mmcached.frontend.encode", "mmcached.engine.encode", "mmcached.engine.queue", "mmcached.engine.step")
    spans = trace_of(receiver, caller, *names)
    front, engine = spans["mmcached.frontend.encode"], spans["mmcached.engine.encode"]
    assert front.parent_id not in ("", f"{caller.get_span_context().span_id:016x}"), "the client's span is between"
    assert engine.parent_id == front.span_id == spans["mmcached.frontend.preprocess"].parent_id
    assert engine.span_id == spans["mmcached.engine.queue"].parent_id == spans["mmcached.engine.step"].parent_id
    assert [front.attributes[f"mmcached.num_{what}"] for what in ("images", "clips")] == [2, 0]
    assert spans["mmcached.frontend.preprocess"].attributes == {"mmcached.num_processed": 2, "mmcached.num_stored": 0}
    assert spans["mmcached.engine.step"].attributes == {"mmcached.num_items": 2, "mmcached.num_loaded": 0}
    assert not any(span.has_failed for span in spans.values())
    for span in (spans["mmcached.frontend.preprocess"], engine):
        assert front.start_ns <= span.start_ns <= span.end_ns <= front.end_ns
    roles = {name: span.resource["mmcached.role"] for name, span in spans.items()}
    assert roles == {
        "mmcached.frontend.encode": "frontend",
        "mmcached.frontend.preprocess": "frontend",
        "mmcached.engine.encode": "engine 0",
        "mmcached.engine.queue": "engine 0",
        "mmcached.engine.step": "engine 0",
    }
    assert {span.resource["service.name"] for span in spans.values()} == {"mmcached"}
    assert {span.resource["deployment.environment.name"] for span in spans.values()} == {"test"}


def test_a_generation_has_one_span_for_all_its_steps(run_dir: Path, receiver: OtlpReceiver) -> None:
    with (
        Client(run_dir, tracer_provider=PROVIDER) as client,
        PROVIDER.get_tracer("test").start_as_current_span("c") as c,
    ):
        client.generate("look: <image>", [png(3)], max_tokens=4)
    spans = trace_of(receiver, c, "mmcached.frontend.generate", "mmcached.engine.generate")
    names = {"mmcached.frontend.preprocess", "mmcached.engine.queue", "mmcached.engine.step"}
    assert {*spans} == {"mmcached.frontend.generate", "mmcached.engine.generate"} | names


def test_the_page_runs(run_dir: Path, receiver: OtlpReceiver, tmp_path: Path) -> None:
    (block,) = code(REPOSITORY / "docs" / "tracing.md", "py")
    for shown, real in (("http://127.0.0.1:4318/v1/traces", receiver.endpoint), ("/run/mmcached", str(run_dir))):
        assert shown in block
        block = block.replace(shown, real)
    (tmp_path / "cat.png").write_bytes(png(8))
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True, timeout=60)

    def traced() -> dict[str, Received]:
        answers = [span for span in list(receiver.spans) if span.name == "answer"]
        return receiver.in_trace(answers[0].trace_id) if answers else {}

    spans = eventually(traced, lambda found: "mmcached.engine.encode" in found, "one trace")
    assert spans["mmcached.encode"].parent_id == spans["answer"].span_id
    assert spans["mmcached.frontend.encode"].parent_id == spans["mmcached.encode"].span_id


def test_a_client_without_a_tracer_begins_traces_at_the_service(run_dir: Path, receiver: OtlpReceiver) -> None:
    with Client(run_dir) as client:
        client.encode([png(4), png(5), png(6)])

    def root() -> list[Received]:
        spans = [span for span in list(receiver.spans) if span.name == "mmcached.frontend.encode"]
        return [span for span in spans if not span.parent_id and span.attributes["mmcached.num_images"] == 3]

    (span,) = eventually(root, bool, "a trace without a client")
    assert "mmcached.frontend.encode" in receiver.in_trace(span.trace_id)


def test_a_collector_that_does_not_answer_delays_no_request(run_dir: Path, receiver: OtlpReceiver) -> None:
    before = receiver.num_requests
    receiver.answers.clear()
    try:
        with Client(run_dir) as client:
            while receiver.num_requests == before:  # the test's own deadline ends it
                client.encode([png(7)], image_ids=["seven"])
            for _ in range(10):
                assert len(client.encode([png(7)], image_ids=["seven"])) == 1
    finally:
        receiver.answers.set()
