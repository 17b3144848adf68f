"""After every call to an engine's workers that may change weights the tower is read again; vLLM's own change none."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from mmcached.integrations.vllm.tower import read_tower
from mmcached.integrations.vllm.weights import tower_of, watch


class Executor:
    """Calls workers as vLLM's executors do; each rank says what its tower is."""

    def __init__(self, engine_id: str | None) -> None:
        transfer = None if engine_id is None else SimpleNamespace(engine_id=engine_id)
        self.vllm_config = SimpleNamespace(ec_transfer_config=transfer)
        self.called: list[object] = []
        self.towers: list[Any] = ["first"]
        self.num_read = 0

    def collective_rpc(self, method: object, *values: object, **named: object) -> list[Any]:
        if method is read_tower:
            self.num_read += 1
            if self.towers == ["broken"]:
                raise RuntimeError("a worker has failed")
            return [{"tower": tower, "words": None, "device": "cpu"} for tower in self.towers]
        self.called.append((method, values, named))
        return [method]

    def init_ec_output_aggregator(self) -> str:
        return "made"

    def tower(self) -> Any:
        rows = tower_of(self.vllm_config.ec_transfer_config.engine_id).rows()
        return None if rows is None else rows["tower"]


@pytest.fixture
def watched() -> type[Executor]:
    executor = type("Watched", (Executor,), {})
    watch(executor)
    return executor


def scale_weights(worker: Any) -> None:
    """Do what a user does to a model."""


def started(watched: type[Executor], engine_id: str) -> Executor:
    executor = watched(engine_id)
    assert executor.tower() is None, "nobody has called a worker"
    assert executor.init_ec_output_aggregator() == "made"
    assert (executor.num_read, executor.tower(), executor.num_read) == (1, "first", 1)
    return executor


@pytest.mark.parametrize(
    "method", ["reload_weights", "finish_weight_update", "reset_encoder_cache", "apply_model", scale_weights]
)
def test_after_what_may_change_weights_the_tower_is_read_again(watched: type[Executor], method: object) -> None:
    one, other = started(watched, f"one {method}"), started(watched, f"other {method}")
    one.towers = ["second"]
    assert one.collective_rpc(method, 1.0, args=(2,)) == [method]
    assert (one.num_read, one.tower()) == (2, "second"), "it is read at once"
    assert one.collective_rpc(method=method) == [method]
    assert one.called == [(method, (1.0,), {"args": (2,)}), (method, (), {})]
    assert (one.num_read, one.tower(), other.num_read, other.tower()) == (3, "second", 1, "first")


@pytest.mark.parametrize("method", ["execute_model", "sample_tokens", "check_health", "add_lora", "reset_mm_cache"])
def test_what_vllm_calls_by_itself_changes_nothing(watched: type[Executor], method: str) -> None:
    executor = started(watched, f"usual {method}")
    executor.towers = ["second"]
    assert executor.collective_rpc(method, non_block=True) == [method]
    assert (executor.num_read, executor.tower()) == (1, "first")


def test_an_update_in_pieces_is_read_once(watched: type[Executor]) -> None:
    executor = started(watched, "in pieces")
    for piece in range(3):
        executor.towers = [f"piece {piece}"]
        executor.collective_rpc("update_weights", args=({},))
    assert executor.num_read == 1
    executor.collective_rpc("finish_weight_update")
    assert (executor.num_read, executor.tower()) == (2, "piece 2")


def test_a_piece_of_an_update_is_read_when_it_is_asked_for(watched: type[Executor]) -> None:
    executor = started(watched, "asked between")
    executor.towers = ["half"]
    executor.collective_rpc("update_weights", args=({},))
    assert executor.tower() == "half"


def test_weights_that_sleep_are_not_read(watched: type[Executor]) -> None:
    executor = started(watched, "asleep")
    executor.collective_rpc("sleep", kwargs={"level": 2})
    assert executor.tower() is None
    executor.collective_rpc("wake_up", kwargs={"tags": ["kv_cache"]})
    executor.collective_rpc("reset_encoder_cache")
    assert (executor.tower(), executor.num_read) == (None, 1)
    executor.towers = ["second"]
    executor.collective_rpc("wake_up", kwargs={"tags": ["weights"]})
    assert (executor.tower(), executor.num_read) == ("second", 2)
    executor.collective_rpc("sleep", kwargs={"level": 1})
    executor.collective_rpc("wake_up", kwargs={"tags": None})
    assert executor.tower() == "second"


@pytest.mark.parametrize(
    ("tags", "known"), [(("kv_cache",), "first"), (("weights",), None), (("kv_cache", "weights"), None)]
)
def test_only_weights_that_are_discarded_are_gone(watched: type[Executor], tags: tuple[str, ...], known: Any) -> None:
    executor = started(watched, f"discarded {tags}")
    executor.collective_rpc("discard", args=(tags,))
    assert executor.tower() == known
    executor.collective_rpc("wake_up", kwargs={"tags": list(tags)})
    assert executor.tower() == "first"


def test_a_tower_that_cannot_be_read_is_tried_again_after_the_next_change(
    watched: type[Executor], caplog: pytest.LogCaptureFixture
) -> None:
    executor = started(watched, "broken")
    executor.towers = ["broken"]
    with caplog.at_level(logging.WARNING, "vllm.mmcached"):
        executor.collective_rpc("reload_weights")
    assert (executor.tower(), executor.num_read) == (None, 2)
    assert "a worker has failed" in caplog.text
    executor.towers = ["second"]
    assert executor.tower() is None, "no step tries it"
    executor.collective_rpc("reload_weights")
    assert executor.tower() == "second"


def test_ranks_have_one_tower_together(watched: type[Executor]) -> None:
    executor = started(watched, "ranks")
    for towers, wanted in ((["a", "a"], "a"), (["a", "b"], ["a", "b"]), (["a", None], "a"), ([None, None], None)):
        executor.towers = towers
        executor.collective_rpc("reload_weights")
        assert executor.tower() == wanted


def test_a_class_is_watched_once_and_a_subclass_with_it(watched: type[Executor]) -> None:
    watch(watched)
    further = type("Further", (watched,), {})
    watch(further)
    executor = started(further, "once")
    executor.collective_rpc("reload_weights")
    assert executor.num_read == 2


def test_a_vllm_without_that_method_is_read_when_its_workers_were_called() -> None:
    class Former(Executor):
        init_ec_output_aggregator = None  # type: ignore[assignment]

    watch(Former)
    executor = Former("former")
    assert executor.tower() is None
    executor.collective_rpc("get_supported_tasks")
    assert (executor.num_read, executor.tower(), executor.num_read) == (0, "first", 1)


def test_an_engine_without_a_connector_is_not_read(watched: type[Executor]) -> None:
    executor = watched(None)
    assert executor.collective_rpc("reload_weights") == ["reload_weights"]
    assert executor.num_read == 0
