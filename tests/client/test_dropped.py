"""What a client leaves of its process: it may be dropped without `close`, and torch is imported when it is wanted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmcached.wire.process.death import environment_for_children
from tests.client.services import StoreService, fake_service, silent
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
    arm = "import gc, sys\nfrom mmcached.wire.process.death import arm_from_environment\narm_from_environment()\n"
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


NUMPY_ONLY = """
import sys
import numpy as np
from mmcached.client import Client
with Client(sys.argv[1], fail_open=False) as client:
    assert client.put("k", {"x": np.arange(5)})
    assert client.get("k", view=True, tensors="numpy").record["x"].tolist() == [0, 1, 2, 3, 4]
    assert client.get("k", tensors="numpy").record["x"].sum() == 10
    assert client.get_or_compute("l", lambda: {"text": "no tensor"}) == {"text": "no tensor"}
    assert client.get("l").record == {"text": "no tensor"}
    assert client.generate([1, 2]).tokens == [1, 2]
assert "torch" not in sys.modules, "nobody asked for a tensor of torch"
"""


def test_who_handles_no_tensor_of_torch_does_not_import_it(run_dir: Path) -> None:
    with StoreService(run_dir):
        done = subprocess.run(
            [sys.executable, "-c", NUMPY_ONLY, str(run_dir)],
            env=environment_for_children(),
            timeout=DEADLINE_S,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
