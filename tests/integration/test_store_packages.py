"""A store alone serves with the packages of its extra: none that only workers, decoders or a second level need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from mmcached.client import Client
from tests.present import present
from tests.shm.processes import DEADLINE_S

BLOCKED = ("torch", "PIL", "cv2", "scipy", "soundfile", "transformers", "safetensors", "redis", "ray")
SERVE = (sys.executable, "-m", "mmcached", "serve", "--device", "cpu", "--store-gb", "0.02")

VERBS = """
import sys
from mmcached.cli.app import app
for verb in ("ping", "status", "keys", "info"):
    try:
        app([verb, "--run-dir", sys.argv[1]])
    except SystemExit as end:
        assert not end.code, (verb, end.code)
"""
"""Verbs of one process, which imports the command line once."""


def without_packages(folder: Path) -> dict[str, str]:
    """Return an environment in which no Python process can import a blocked package."""
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({BLOCKED}))\n")
    return os.environ | {"PYTHONPATH": str(folder)}


def test_a_store_and_the_verbs_need_no_package_of_workers(run_dir: Path, tmp_path: Path) -> None:
    environment, home = without_packages(tmp_path), run_dir / "s"
    command = [*SERVE, "--workers", "0", "--run-dir", str(home)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as service:
        try:
            assert service.stdout is not None
            assert service.stdout.readline().startswith("mmcached ready")
            with Client(home, fail_open=False) as client:
                assert client.put("key", {"x": np.arange(3)})
                found = present(client.get("key"))
                assert found.record["x"].tolist() == [0, 1, 2]
            asked = [sys.executable, "-c", VERBS, str(home)]
            ended = subprocess.run(
                asked, env=environment, capture_output=True, text=True, check=False, timeout=DEADLINE_S
            )
            assert ended.returncode == 0, ended.stderr
        finally:
            service.terminate()
            service.wait(DEADLINE_S)
    assert service.returncode == 0


def test_workers_without_their_packages_are_refused_in_a_line(run_dir: Path, tmp_path: Path) -> None:
    serve, demo = [*SERVE, "--run-dir", str(run_dir / "s")], [sys.executable, "-m", "mmcached", "demo"]
    for verb, extra in ((serve, "service"), (demo, "demo")):
        ended = subprocess.run(
            verb, env=without_packages(tmp_path), capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
        assert ended.returncode == 2
        assert ended.stderr.startswith("mmcached: config_error: world_size = 2: workers need torch and PIL")
        assert f"pip install '.[{extra}]'" in ended.stderr
        assert ended.stderr.count("\n") == 1
