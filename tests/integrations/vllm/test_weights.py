"""Every call to an engine's workers that may change weights is noticed, whoever makes it; vLLM's own calls are not."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from mmcached.integrations.vllm.weights import num_changes, watch
from tests.house import REPOSITORY

PAGE = (REPOSITORY / "docs" / "hosts" / "vllm.md").read_text()


class Executor:
    """Calls workers as vLLM's executors do."""

    def __init__(self, engine_id: str | None) -> None:
        transfer = None if engine_id is None else SimpleNamespace(engine_id=engine_id)
        self.vllm_config = SimpleNamespace(ec_transfer_config=transfer)
        self.called: list[object] = []

    def collective_rpc(self, method: object, *values: object, **named: object) -> list[object]:
        self.called.append((method, values, named))
        return [method]


@pytest.fixture
def watched() -> type[Executor]:
    executor = type("Watched", (Executor,), {})
    watch(executor)
    return executor


def scale_weights(worker: Any) -> None:
    """Do what a user does to a model."""


@pytest.mark.parametrize("method", ["reload_weights", "sleep", "reset_encoder_cache", "apply_model", scale_weights])
def test_what_may_change_weights_is_noticed(
    watched: type[Executor], method: object, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = watched(f"one {method}"), watched(f"other {method}")
    with caplog.at_level(logging.WARNING, "vllm.mmcached"):
        assert one.collective_rpc(method, 1.0, args=(2,)) == [method]
        assert one.collective_rpc(method=method) == [method]
    assert one.called == [(method, (1.0,), {"args": (2,)}), (method, (), {})]
    assert (num_changes(f"one {method}"), num_changes(f"other {method}")) == (2, 0)
    assert other.called == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert str(getattr(method, "__name__", method)) in said


@pytest.mark.parametrize("method", ["execute_model", "sample_tokens", "check_health", "add_lora", "reset_mm_cache"])
def test_what_vllm_calls_by_itself_changes_nothing(watched: type[Executor], method: str) -> None:
    executor = watched(f"usual {method}")
    assert executor.collective_rpc(method, non_block=True) == [method]
    assert num_changes(f"usual {method}") == 0


def test_a_class_is_watched_once_and_a_subclass_with_it(watched: type[Executor]) -> None:
    watch(watched)
    further = type("Further", (watched,), {})
    watch(further)
    further("once").collective_rpc("reload_weights")
    assert num_changes("once") == 1


def test_an_engine_without_a_connector_is_not_counted(watched: type[Executor]) -> None:
    assert watched(None).collective_rpc("reload_weights") == ["reload_weights"]


def test_a_change_without_such_a_call_is_not_noticed(watched: type[Executor]) -> None:
    """The page says so: a thread of the worker, or a program that has the model in its own process."""
    executor = watched("in process")
    scale_weights(executor)
    assert num_changes("in process") == 0
    assert "are not noticed" in PAGE
