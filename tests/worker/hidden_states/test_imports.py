"""An engine of another house embeds the store, and has neither our sockets nor our shared memory with it."""

from __future__ import annotations

import json
import subprocess
import sys

OURS = {"mmcached.wire.errors", "mmcached.worker.integers"}
HEAVY = {"zmq", "pydantic", "pydantic_settings", "posix_ipc", "structlog", "starlette", "uvicorn", "prometheus_client"}


PROGRAM = "from mmcached.worker import TensorPrefixStore"
"""Imports `mmcached.worker.hidden_states`, and all that leads there."""


def modules_of(program: str) -> set[str]:
    """Return the names of all modules that a child Python has loaded after a program."""
    listing = f"{program}; import json, sys; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(run.stdout))


def test_hidden_states_need_torch_numpy_and_msgspec_only() -> None:
    modules = modules_of(PROGRAM)
    assert {name.split(".")[0] for name in modules} & HEAVY == set()
    assert "mmcached.worker.hidden_states" in modules
    ours = {name for name in modules if name.startswith("mmcached.")} - OURS
    assert {name for name in ours if not name.startswith(("mmcached.wire", "mmcached.worker.hidden_states"))} == {
        "mmcached.worker"
    }
