"""`mmcached demo --vllm` as a user runs it.

With a stand-in for vLLM: `tests/cli/test_vllm_demo.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmcached.cli.exit_status import NO_SERVICE
from tests.hosts.vllm.conftest import MakeCheckpoint
from tests.integration.processes import descendants, eventually, is_alive

pytestmark = pytest.mark.timeout(1800)
DEMO_S = 1200.0
WORDS = ["--vllm-args", "--max-model-len 2048 --max-num-seqs 8 --enforce-eager --dtype float32"]


def demo(*words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "mmcached", "demo", "--vllm", *words]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_servers_encode_each_picture_once_and_say_the_same() -> None:
    """With the model that the demo makes."""
    with demo() as process:
        said, errors = process.communicate(timeout=DEMO_S)
    assert process.returncode == 0, said + errors
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if "│" in line]
    assert [(row[0], row[-1]) for row in rows] == [
        ("new, in the first server", "5"),
        ("again, in the first server", "0"),
        ("in the other server", "0"),
        ("in the other server, not shared", "5"),
    ]
    assert "the 40 generated tokens; also their log-probabilities, bit for bit" in " ".join(said.split())


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    with demo("--vllm-model", str(tmp_path)) as process:
        _, errors = process.communicate(timeout=DEMO_S)
    assert process.returncode == NO_SERVICE
    assert "config.json" in errors or "model type" in errors
    assert "first server: it did not start" in errors


def test_everything_ends_with_a_demo_that_is_killed(checkpoint: MakeCheckpoint) -> None:
    """Also vLLM's engine, which a SIGKILL of vLLM's own front end leaves behind."""
    before = set(descendants(os.getpid()))
    with demo("--vllm-model", str(checkpoint("qwen2_5_vl")), *WORDS) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("start vLLM, first server"):
                process.kill()
    eventually(
        lambda: list(filter(is_alive, set(descendants(os.getpid())) - before)),
        lambda left: not left,
        "processes that are left",
    )
