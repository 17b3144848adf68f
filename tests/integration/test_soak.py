"""`make soak`: the whole matrix with real processes, and fifty kills in a row under traffic that never pauses."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import AsyncClient, Client, Generation
from tests.integration.processes import (
    DEADLINE_S,
    descendants,
    eventually,
    is_alive,
    leases_of,
    role_pids,
    segments_of,
    small_config,
    stats_of,
)
from tests.integration.test_bit_identical import MODES, POOLS, STEPS, base, uncached
from tests.integration.test_restarts import answers, ask_all, assert_right_or_retryable
from tests.integration.workloads import assert_same, play, random_rounds

pytestmark = pytest.mark.soak

NUM_KILLS = 50


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("mode", MODES)
def test_matrix_with_real_processes(
    *, mode: str, world_size: int, pool: str, steps: str, run_dir: Path, tmp_path: Path
) -> None:
    settings = MODES[mode] | POOLS[pool] | STEPS[steps] | {"world_size": world_size}
    wanted = list(uncached(5))
    with ChildService(run_dir / "s", base(**settings), tmp_path / "config.json") as service:
        for _ in range(2):
            assert_same(asyncio.run(play(service.run_dir, random_rounds(5))), wanted)
        stats = stats_of(service.run_dir)
    assert stats.desyncs == 0
    assert (stats.engines[0].preemptions > 0) == (pool == "preempting")


@pytest.mark.parametrize("mode", ["shm", "lru"])
def test_fifty_random_kills(run_dir: Path, tmp_path: Path, mode: str, draw_seeds: Callable[[int], range]) -> None:
    rng = random.Random(draw_seeds(1)[0])
    config = small_config(mm_processor_cache_type=mode, restart_backoff_s=0.004, max_restarts=1000)
    with ChildService(run_dir / "s", config, tmp_path / "config.json") as service:
        with Client(service.run_dir) as client:
            wanted = answers(client)
        rings = set()
        for _ in range(NUM_KILLS):
            rings |= segments_of(descendants(service.process.pid))
            asyncio.run(_kill_one(service, rng, wanted))
        stats = eventually(
            lambda: stats_of(service.run_dir), lambda s: leases_of(s) == 0 and s.requests_open == 0, "leases at rest"
        )
        assert stats.desyncs == 0
        everybody = descendants(service.process.pid)
        rings |= segments_of(everybody)
        assert service.stop() == 0
    assert not [pid for pid in everybody if is_alive(pid)]
    assert not [path for path in rings if path.exists()]


async def _kill_one(service: ChildService, rng: random.Random, wanted: list[list[int]]) -> None:
    """Kill a random role at a random moment of the traffic; go on until all answers are right again."""
    async with AsyncClient(service.run_dir, connect_timeout_s=DEADLINE_S) as client:
        traffic = asyncio.create_task(ask_all(client))
        await asyncio.sleep(rng.random() * 0.3)  # the moment is what is random here; nothing waits for it
        pids = [pid for of_role in role_pids(service.process.pid).values() for pid in of_role]
        if pids:
            os.kill(rng.choice(pids), signal.SIGKILL)
        outcomes = await asyncio.wait_for(traffic, DEADLINE_S)
        assert_right_or_retryable(outcomes, wanted)
        give_up = asyncio.get_running_loop().time() + DEADLINE_S
        while not all(isinstance(outcome, Generation) for outcome in outcomes):
            assert asyncio.get_running_loop().time() < give_up, outcomes
            outcomes = await asyncio.wait_for(ask_all(client), DEADLINE_S)
            assert_right_or_retryable(outcomes, wanted)
