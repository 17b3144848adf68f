"""A worker that caches tiles, and a store whose frontend stops or dies: every answer is the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
import pytest

from mmcached.client import Client
from mmcached.worker.steps import runner as runners
from mmcached.worker.steps.runner import ModelRunner
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually, small_config
from tests.worker.steps.test_runner import CONFIG, CPU
from tests.worker.steps.test_tile_outputs import Steps, Tower


@pytest.fixture
def tower(monkeypatch: pytest.MonkeyPatch) -> Tower:
    tower = Tower()
    monkeypatch.setattr(runners, "make_encoder", lambda *_: tower)
    return tower


def make_runner(run_dir: Path) -> ModelRunner:
    return ModelRunner(msgspec.structs.replace(CONFIG, world_size=1), rank=0, device=CPU, run_dir=run_dir)


@pytest.mark.parametrize("how", ["stops", "dies"])
def test_tiles_while_the_frontend_stops_or_is_dead(run_dir: Path, tower: Tower, how: str) -> None:
    with LoneFrontend(run_dir, small_config(world_size=0)) as frontend, make_runner(run_dir) as runner:
        with Client(run_dir, fail_open=False) as client:
            epoch = client.service.store_epoch
        steps = Steps(runner, tower)
        assert steps.encode([1, 2, 3], epoch=epoch) == [1, 2, 3]
        assert steps.encode([3, 2, 4], epoch=epoch) == [4]
        if how == "stops":
            os.kill(frontend.process.pid, signal.SIGSTOP)
        else:
            frontend.kill()
        assert steps.encode([4, 1], [2, 5], epoch=epoch) == [5], "hits need no frontend"
        with make_runner(run_dir) as late:
            assert Steps(late, tower).encode([1, 2], [3, 4], epoch=epoch) == [1, 2, 3, 4], "it was never in contact"
        if how == "stops":
            os.kill(frontend.process.pid, signal.SIGCONT)
        else:
            frontend.start()
        tiles = iter(range(10, 1000, 2))

        def is_kept() -> bool:
            number = next(tiles)
            steps.encode([number, number + 1], epoch=epoch)
            return steps.encode([number + 1, number], epoch=epoch) == []

        eventually(is_kept, bool, "new tiles are kept again")
        assert steps.encode([1, 2, 3], epoch=epoch) == [], "and so are those of before"
