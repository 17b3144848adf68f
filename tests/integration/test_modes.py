"""The processor cache's modes with real processes (lru: `test_restarts`); `test_bit_identical` and the soak more."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from tests.integration.processes import stats_of
from tests.integration.test_bit_identical import MODES, base, uncached
from tests.integration.workloads import assert_same, play, random_rounds


def test_shm_with_real_processes(lasting_service: ChildService) -> None:
    play_in(lasting_service.run_dir, "shm")


@pytest.mark.soak  # they share no state between processes
@pytest.mark.parametrize("mode", ["off", "processor_only"])
def test_mode_with_real_processes(mode: str, run_dir: Path, tmp_path: Path) -> None:
    with ChildService(run_dir / "s", base(**MODES[mode]), tmp_path / "config.json") as service:
        play_in(service.run_dir, mode)


def play_in(run_dir: Path, mode: str) -> None:
    """Compare a workload's answers with the uncached ones, and look at what the caches counted meanwhile."""
    before = stats_of(run_dir)
    assert_same(asyncio.run(play(run_dir, random_rounds(5))), list(uncached(5)))
    after = stats_of(run_dir)
    assert after.desyncs == before.desyncs
    assert (after.processor.hits > before.processor.hits) == (mode != "off")
    assert (after.items.puts > before.items.puts) == (mode == "shm")
