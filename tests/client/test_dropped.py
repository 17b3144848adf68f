"""A client that is dropped without `close`, also after an error, ends with its process and its collector, at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmcached.wire.death import environment_for_children
from tests.client.fake_service import fake_service
from tests.client.test_threads import silent
from tests.integration.processes import DEADLINE_S

SYNC = """
from mmcached.client import Client
def use():
    client = Client(sys.argv[1], fail_open=False)
    client.generate("x", [bytes(1 << 24)], timeout_s=0.2)
"""
ASYNC = """
import asyncio
from mmcached.client import AsyncClient
async def ask():
    client = await AsyncClient(sys.argv[1], fail_open=False).__aenter__()
    await client.generate("x", [bytes(1 << 24)], timeout_s=0.2)
def use():
    asyncio.run(ask())
"""
ENDS = {
    "collected": "del kept; gc.collect(); print('collected', flush=True)",
    "collected, in a cycle": "cycle = [kept]; cycle.append(cycle); del kept, cycle; gc.collect(); print('collected')",
    "at exit, with the error": "pass",
    "at exit, in a cycle": "cycle = [kept]; cycle.append(cycle); del kept; gc.disable()",
}


@pytest.mark.parametrize("ends", ENDS.values(), ids=list(ENDS))
@pytest.mark.parametrize("body", [SYNC, ASYNC], ids=["Client", "AsyncClient"])
def test_a_dropped_client_keeps_nobody_waiting(run_dir: Path, body: str, ends: str) -> None:
    arm = "import gc, sys\nfrom mmcached.wire.death import arm_from_environment\narm_from_environment()\n"
    end = f"kept = None\ntry:\n    use()\nexcept Exception as error:\n    kept = error\nassert kept\n{ends}\n"
    with fake_service(run_dir, silent):
        done = subprocess.run(
            [sys.executable, "-c", arm + body + end, str(run_dir)],
            env=environment_for_children(),
            timeout=DEADLINE_S,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert ("collected" in done.stdout) == ("collected" in ends)
