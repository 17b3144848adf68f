"""A question to the data path that nobody waits for: what it finds, and since when."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mmcached.cli.watch.readiness_watch import READY_INTERVAL_S, RETRY_INTERVAL_S, SLACK_S, ReadinessWatch
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ServiceUnavailable, error_to_wire
from mmcached.wire.messages.client import Failed, Probed, ToClient
from mmcached.wire.messages.frontend import FromClient, Probe
from mmcached.wire.paths import RunDir
from tests.client.services import fake_service
from tests.shm.processes import wait_until

CONFIG = ServiceConfig(step_timeout_s=7.0)
START_S = 1000.0


@pytest.fixture
def watch(run_dir: Path) -> Iterator[ReadinessWatch]:
    RunDir(run_dir).create()
    with ReadinessWatch(RunDir(run_dir), CONFIG) as watch:
        yield watch


def look_until(watch: ReadinessWatch, condition: Callable[[], bool], now: float = START_S) -> None:
    def looked() -> bool:
        watch.look(now)
        return condition()

    wait_until(looked)


def works(message: FromClient) -> list[ToClient]:
    assert isinstance(message, Probe)
    assert message.timeout_s == CONFIG.step_timeout_s
    return [Probed(message.request_id, [0], 2, [])]


def test_ready(run_dir: Path, watch: ReadinessWatch) -> None:
    with fake_service(run_dir, works) as received:
        look_until(watch, lambda: watch.is_ready)
        assert watch.not_ready_since is None
        watch.look(START_S + READY_INTERVAL_S / 2)
        look_until(watch, lambda: len(received) == 2, START_S + READY_INTERVAL_S)


def test_not_ready_and_since_when(run_dir: Path, watch: ReadinessWatch) -> None:
    reason = error_to_wire(ServiceUnavailable("no engine is ready yet"))

    def fails(message: FromClient) -> list[ToClient]:
        assert isinstance(message, Probe)
        return [Failed(message.request_id, reason)]

    with fake_service(run_dir, fails):
        look_until(watch, lambda: watch.not_ready_since is not None)
        later = START_S + RETRY_INTERVAL_S
        watch.look(later)
        assert (watch.is_ready, watch.not_ready_since, watch.reason) == (False, START_S, "no engine is ready yet")
        watch.forgive()
        look_until(watch, lambda: watch.not_ready_since == later, later)


def test_a_frontend_that_refuses_the_connection_says_why(run_dir: Path, watch: ReadinessWatch) -> None:
    reason = error_to_wire(ServiceUnavailable("no descriptors are left"))
    with fake_service(run_dir, lambda message: [Failed(None, reason)]):
        look_until(watch, lambda: watch.not_ready_since is not None)
        assert (watch.is_ready, watch.reason) == (False, "no descriptors are left")


def test_an_engine_through_which_nothing_goes_has_a_time_of_its_own(run_dir: Path) -> None:
    RunDir(run_dir).create()
    engines = [1]

    def works_in_part(message: FromClient) -> list[ToClient]:
        assert isinstance(message, Probe)
        return [Probed(message.request_id, engines, 2, ["engine 0 lacks a worker"])]

    with (
        ReadinessWatch(RunDir(run_dir), msgspec.structs.replace(CONFIG, data_parallel_size=2)) as watch,
        fake_service(run_dir, works_in_part),
    ):
        look_until(watch, lambda: watch.is_ready)
        assert (watch.are_all_ready, watch.not_ready_since) == (False, None)
        assert watch.engine_not_ready_since == {0: START_S}
        assert "engine 0 lacks a worker" in watch.reason
        watch.forgive([0])
        later = START_S + RETRY_INTERVAL_S
        look_until(watch, lambda: watch.engine_not_ready_since == {0: later}, later)
        engines = [0, 1]
        look_until(watch, lambda: watch.are_all_ready, later + RETRY_INTERVAL_S)


def test_nobody_answers(run_dir: Path, watch: ReadinessWatch) -> None:
    with fake_service(run_dir, lambda message: []) as received:
        look_until(watch, lambda: len(received) == 1)
        watch.look(START_S + CONFIG.step_timeout_s)
        assert watch.not_ready_since is None, "it may take as long as a step"
        watch.look(START_S + CONFIG.step_timeout_s + 2 * SLACK_S)
        assert watch.not_ready_since == START_S
        assert "no answer" in watch.reason


def test_a_frontend_that_goes_and_comes_back(run_dir: Path, watch: ReadinessWatch) -> None:
    with fake_service(run_dir, lambda message: []) as received:
        look_until(watch, lambda: len(received) == 1)
    look_until(watch, lambda: watch.not_ready_since is not None)
    assert "closed the connection" in watch.reason
    with fake_service(run_dir, works):
        look_until(watch, lambda: watch.is_ready, START_S + 1)
