"""Every mode of the processor cache with real processes, once; the whole matrix runs in one process, or in the soak."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mmcached.cli.child_service import ChildService
from tests.integration.processes import stats_of
from tests.integration.test_bit_identical import MODES, base, uncached
from tests.integration.workloads import assert_same, play, random_rounds


@pytest.mark.parametrize(
    "mode",
    # The other two share no state between processes; the soak plays the whole matrix.
    [pytest.param(mode, marks=() if mode in ("shm", "lru") else pytest.mark.soak) for mode in MODES],
)
def test_mode_with_real_processes(mode: str, run_dir: Path, tmp_path: Path) -> None:
    with ChildService(run_dir / "s", base(**MODES[mode]), tmp_path / "config.json") as service:
        assert_same(asyncio.run(play(service.run_dir, random_rounds(5))), list(uncached(5)))
        stats = stats_of(service.run_dir)
    assert stats.desyncs == 0
    assert (stats.processor.hits > 0) == (mode != "off")
    assert (stats.ring.grants > 0) == (mode == "shm")
