"""The frontend is killed again and again while clients falsify their own counts; `make soak`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from tests.integration.hostile.test_hostile import attacked_by
from tests.integration.processes import eventually, role_pids, small_config

pytestmark = pytest.mark.soak

NUM_RECORDS = 200
NUM_ATTACKERS = 3


def record_of(number: int) -> dict[str, object]:
    return {"x": np.arange(number, number + 2000)}


def test_no_record_of_others_is_lost(
    run_dir: Path, tmp_path: Path, request: pytest.FixtureRequest, draw_seeds: Callable[[int], range]
) -> None:
    seconds = float(request.config.getoption("hostile_seconds"))
    config = small_config(world_size=0, store_gb=1 / 8, max_restarts=1_000_000, restart_backoff_s=0.05)
    keys = [f"{number}" for number in range(NUM_RECORDS)]
    num_kills = num_with_fenced = 0
    with (
        ChildService(run_dir / "s", config, tmp_path / "config.json") as service,
        Client(service.run_dir, timeout_s=20.0, tenant="honest") as client,
        attacked_by(["false_counts"] * NUM_ATTACKERS, service, draw_seeds(1)[0], {}),
    ):
        for number, key in enumerate(keys):
            assert client.put(key, record_of(number))
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            time.sleep(1.0)  # the attackers' turn
            (former,) = role_pids(service.process.pid)["frontend"]
            os.kill(former, signal.SIGKILL)
            num_kills += 1
            eventually(
                lambda: role_pids(service.process.pid)["frontend"],
                lambda pids: pids not in ([], [former]),  # noqa: B023
                "another frontend",
            )
            assert eventually(lambda: client.put("after", record_of(0)), bool, "a put after the kill")
            num_with_fenced += client.stats().store.ring.fenced_readers > 0
            for number, hit in enumerate(client.get_many(keys, tensors="numpy")):
                assert hit is not None, f"record {number} is gone after {num_kills} kills"
                assert np.array_equal(hit.record["x"], np.arange(number, number + 2000))
    print(f"{num_kills} kills, and after {num_with_fenced} of them a fenced reader that lived on")
    assert num_kills > 0
