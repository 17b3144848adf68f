"""The recipe for Ray Serve LLM runs: a replica finds what another one has encoded before it."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from tests.hosts.vllm.processing import picture
from tests.hosts.vllm.servers import TOWER_FILE, server_environment

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(1800)]
RUN_S = 900
"""A run takes a minute on a machine with nothing else to do."""


def question() -> bytes:
    file = io.BytesIO()
    picture(0).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    message = {"role": "user", "content": content}
    return json.dumps({"model": "tiny", "max_tokens": 4, "temperature": 0, "messages": [message]}).encode()


def test_a_replica_finds_what_another_one_has_encoded(
    checkpoint: Callable[[str], Path], store: ChildService, tmp_path: Path
) -> None:
    model, towers = checkpoint("qwen2_5_vl"), tmp_path / "towers"
    answers, encoded = [], []
    for _ in range(2):
        environment = server_environment() | {TOWER_FILE: str(towers)}
        environment["RAY_memory_monitor_refresh_ms"] = "0"  # other programs may use most of this machine's memory
        towers.write_text("")
        with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp") as folder:
            words = ["-m", "tests.hosts.ray_serve.ask_application", str(model), str(store.run_dir), folder]
            with (tmp_path / "log").open("wb") as log:
                ended = subprocess.run(
                    [sys.executable, *words],
                    input=question(),
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    timeout=RUN_S,
                    check=False,
                )
        assert ended.returncode == 0, (tmp_path / "log").read_text()[-6000:]
        answers.append(ended.stdout.decode().splitlines()[-1])
        encoded.append(len(towers.read_text().split()))
    assert encoded == [1, 0]
    assert answers[0] == answers[1]
