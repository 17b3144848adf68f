"""A service of two engines: both work, each lives and dies alone, and answers are those of one engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mmcached.cli.admin.observe import fetch
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import AsyncClient, Client, Generation
from mmcached.wire.engine_stats import EngineStats
from tests.integration.processes import DEADLINE_S, eventually, role_pids, small_config, stats_of, stopped
from tests.integration.test_restarts import Outcome, answers, ask_all, assert_right_or_retryable, tokens_of
from tests.integration.test_watching import counters, get
from tests.integration.workloads import photo


@pytest.fixture(scope="module")
def service() -> Iterator[ChildService]:
    config = small_config(
        world_size=1,
        data_parallel_size=2,
        restart_backoff_s=0.05,
        probe_timeout_s=1.0,
        routing_policy="least_loaded",
    )
    with (
        tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch,
        ChildService(Path(scratch) / "s", config, Path(scratch) / "config.json") as service,
    ):
        yield service


@pytest.fixture(scope="module")
def wanted(service: ChildService) -> list[list[int]]:
    """The right tokens of each question, asked one by one."""
    with Client(service.run_dir) as client:
        return answers(client)


def finished(service: ChildService) -> list[int]:
    return [engine.requests_finished for engine in stats_of(service.run_dir).engines]


async def ask(service: ChildService) -> Sequence[Outcome]:
    async with AsyncClient(service.run_dir) as client:
        return await asyncio.wait_for(ask_all(client), DEADLINE_S)


def is_busy(engine: EngineStats) -> bool:
    return engine.requests_running + engine.requests_waiting > 1


def state_of(service: ChildService) -> tuple[bool, list[tuple[str, str, int]]]:
    status = json.loads(fetch(service.run_dir, "/status", DEADLINE_S))
    return status["ready"], [(role["name"], role["state"], role["restarts"]) for role in status["roles"]]


def test_requests_spread_and_each_engine_has_its_figures(service: ChildService, wanted: list[list[int]]) -> None:
    before = finished(service)
    assert tokens_of(asyncio.run(ask(service))) == wanted
    after = finished(service)
    assert len(after) == 2
    assert all(new > old for old, new in zip(before, after, strict=True))
    page = counters(get(service, "/metrics")[1])
    assert {dict(labels)["role"] for name, labels in page if name == "mmcached_engine_steps_total"} == {
        "engine 0",
        "engine 1",
    }
    names = [name for name, state, _ in state_of(service)[1] if state == "running"]
    assert names == ["supervisor", "frontend", "engine 0", "worker 0.0", "engine 1", "worker 1.0"]


def test_a_flush_reaches_both(service: ChildService, wanted: list[list[int]]) -> None:
    asyncio.run(ask(service))
    with Client(service.run_dir) as client:
        client.flush()
        assert [engine.kv.blocks_cached for engine in client.stats().engines] == [0, 0]
        assert client.generate("compare <image>", [photo(9)], 4).num_cached_tokens == 0


def test_an_engine_killed_in_mid_traffic_ends_its_own_requests_alone(
    service: ChildService, wanted: list[list[int]]
) -> None:
    before = role_pids(service.process.pid)

    async def kill() -> Sequence[Outcome]:
        async with AsyncClient(service.run_dir) as watcher:
            with stopped(before["worker"]):
                traffic = asyncio.create_task(ask(service))
                while not all(is_busy(engine) for engine in (await watcher.stats()).engines):
                    assert not traffic.done()
                os.kill(before["engine"][1], signal.SIGKILL)
            while len((await watcher.stats()).engines) == 2:
                pass  # until its death is known, a request may still go there, and ends retryably
            assert len((await watcher.generate("ready? <image>", [photo(9)], 2)).tokens) == 2, "on the other"
            return await traffic

    outcomes = asyncio.run(kill())
    assert_right_or_retryable(outcomes, wanted)
    done = sum(isinstance(outcome, Generation) for outcome in outcomes)
    assert 0 < done < len(wanted), "those of one engine have ended, those of the other have not"
    eventually(lambda: get(service, "/readyz")[0], lambda status: status == 200, "readiness with one")
    eventually(lambda: len(finished(service)), lambda number: number == 2, "the engine is back")
    after = role_pids(service.process.pid)
    for role in ("engine", "worker"):
        assert after[role][0] == before[role][0]
        assert after[role][1] != before[role][1]
    assert after["frontend"] == before["frontend"]
    old = finished(service)
    assert tokens_of(asyncio.run(ask(service))) == wanted
    assert all(new > was for was, new in zip(old, finished(service), strict=True))
    restarts = {name: number for name, _, number in state_of(service)[1]}
    assert (restarts["engine 0"], restarts["worker 0.0"], restarts["engine 1"]) == (0, 0, 1)


def test_a_stopped_engine_leaves_the_service_ready(service: ChildService) -> None:
    """It is silent for less than `silence_timeout_s`, so nobody kills it."""
    engine = role_pids(service.process.pid)["engine"][0]
    os.kill(engine, signal.SIGSTOP)
    try:

        def names_it() -> tuple[int, str]:
            return get(service, "/readyz?verbose=1")

        status, text = eventually(names_it, lambda answer: "probe of engine 0" in answer[1], "the probe's word")
        assert status == 200
        assert "1 engine(s)" in text
        assert ("engine 0", "stopped", 0) in state_of(service)[1]
    finally:
        os.kill(engine, signal.SIGCONT)
    eventually(lambda: get(service, "/readyz")[1], lambda text: "2 engine(s)" in text, "both again")
