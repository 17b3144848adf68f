"""Spans of a role go to its collector; one that does not answer costs spans, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.process import spans
from mmcached.wire.process.spans import exported_spans
from tests.doubles.otlp_receiver import OtlpReceiver
from tests.integration.processes import eventually

PROCESS_S = 60


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


def config_for(receiver: OtlpReceiver) -> ServiceConfig:
    return ServiceConfig(otlp_traces_endpoint=receiver.endpoint)


def test_without_an_endpoint_nothing_is_imported() -> None:
    code = """
import sys
import mmcached.engine.server.server, mmcached.frontend.server
from mmcached.wire.config import ServiceConfig
from mmcached.wire.process.spans import exported_spans
with exported_spans(ServiceConfig(), "frontend") as start_span:
    print(start_span, [name for name in sys.modules if name.startswith("opentelemetry")])
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PROCESS_S)
    assert child.stdout.strip() == "None []"


def test_the_last_spans_are_sent_at_the_end(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    with exported_spans(config_for(receiver), "engine 0") as start_span:
        assert start_span is not None
        start_span("mmcached.engine.encode", "", {"n": 1}).end()
    (span,) = eventually(lambda: list(receiver.spans), bool, "a span")
    assert (span.name, span.attributes) == ("mmcached.engine.encode", {"n": 1})
    assert (span.resource["service.name"], span.resource["mmcached.role"]) == ("mine", "engine 0")


def are_last_spans_sent() -> bool:
    return "last spans" not in [thread.name for thread in threading.enumerate()]


def test_a_collector_that_does_not_answer_keeps_no_role_from_ending(
    receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans beyond the queue are dropped; the end would else wait for the answer, which comes only after it."""
    monkeypatch.setattr(spans, "LAST_EXPORT_S", 0.05)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "600")
    receiver.answers.clear()
    with exported_spans(config_for(receiver), "frontend") as start_span:
        assert start_span is not None
        for number in range(100):
            start_span("mmcached.frontend.encode", "", {"n": number}).end()
        eventually(lambda: receiver.num_requests, bool, "a request that hangs")
    assert not are_last_spans_sent(), "the end has not waited for it"
    assert receiver.spans == []
    receiver.answers.set()
    eventually(lambda: len(receiver.spans), bool, "what was being sent")
    assert len(receiver.spans) < 100
    eventually(are_last_spans_sent, bool, "the end of the thread, before the receiver ends")


def test_what_the_sdk_refuses_names_the_setting(receiver: OtlpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "5")
    with pytest.raises(ConfigError, match="OTEL_") as refused, exported_spans(config_for(receiver), "frontend"):
        pass
    assert refused.value.details["field"] == "otlp_traces_endpoint"
