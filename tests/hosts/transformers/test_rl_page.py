"""The page for reinforcement learning is true: its commands run as they stand there, and a kill changes no answer."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmcached.wire.process.death import environment_for_children
from tests.hosts.transformers import grpo_child
from tests.house import REPOSITORY
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import DEADLINE_S, small_config

PAGE = (REPOSITORY / "docs" / "hosts" / "rl.md").read_text()
NUM_PICTURES, NUM_ANSWERS, GROUP = 4, 64, 8
RUNS = re.compile(r"processor runs: (\d+); tower runs: (\d+)")
STORE_GB = 0.125


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four pictures and what a checkout has; the page's commands make the checkpoint `model`."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "pictures").mkdir()
    for seed in range(NUM_PICTURES):
        pixels = np.random.default_rng(seed).integers(0, 255, (224, 224, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{seed}.png")
    for name in ("examples", "tests"):
        (folder / name).symlink_to(REPOSITORY / name)
    return folder


@pytest.fixture(scope="module")
def said(desk: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the page's commands print: the loop with a store, then without."""
    service, loops = blocks("sh run")
    environment = {
        **os.environ,
        "RUN_DIR": str(tmp_path_factory.mktemp("s") / "s"),
        "MODEL": str(desk / "model"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    script = f"""set -eu
mmcached() {{ exec python -m mmcached "$@" --store-gb {STORE_GB}; }}
{service}
{loops}
kill %1
wait %1
"""
    ended = subprocess.run(
        ["bash", "-mc", script],
        cwd=desk,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=3 * DEADLINE_S,
    )
    return [line for line in ended.stdout.splitlines() if re.match(r"mean reward|\d+ answers|processor", line)]


def test_each_picture_is_processed_and_encoded_once_and_the_answers_stay(said: list[str]) -> None:
    half = len(said) // 2
    assert half == grpo_child.NUM_UPDATES + 2
    *answers, runs_with = said[:half]
    *answers_without, runs_without = said[half:]
    assert answers == answers_without
    assert answers[-1].startswith(f"{NUM_ANSWERS} answers, ")
    assert len(set(answers[:-1])) > 1, "the updates change the answers"
    counts = []
    for line in (runs_with, runs_without):
        runs = RUNS.match(line)
        assert runs is not None, line
        assert f"`{runs[0]}`" in PAGE
        counts.append(tuple(map(int, runs.groups())))
    assert counts == [(NUM_PICTURES, NUM_PICTURES), (2 * NUM_ANSWERS, 2 * NUM_ANSWERS)]
    assert counts[0][1] <= NUM_PICTURES * GROUP / 8


def test_a_killed_store_changes_no_answer(desk: Path, run_dir: Path, said: list[str]) -> None:
    """Killed after the first update of four, before new pictures; started again after the second."""
    digest = hashlib.sha256()
    with LoneFrontend(run_dir, small_config(world_size=0, store_gb=STORE_GB)) as frontend:
        pictures = sorted((desk / "pictures").iterdir())
        with subprocess.Popen(
            [sys.executable, "-m", grpo_child.__name__, str(run_dir), str(desk / "model"), *map(str, pictures)],
            cwd=REPOSITORY,
            env=environment_for_children(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as loop:
            assert loop.stdin is not None
            assert loop.stdout is not None
            updates: list[dict[str, Any]] = []
            for line in loop.stdout:
                updates.append(json.loads(line))
                digest.update(repr(updates[-1]["answers"]).encode())
                if len(updates) == 1:
                    frontend.kill()
                elif len(updates) == 2:
                    frontend.start()
                loop.stdin.write("\n")
                loop.stdin.flush()
    assert loop.returncode == 0
    assert len(updates) == grpo_child.NUM_UPDATES
    assert (updates[0]["processor_runs"], updates[0]["tower_runs"]) == (2, 2)
    assert updates[1]["processor_runs"] > NUM_PICTURES, "the store was gone"
    assert updates[1]["tower_runs"] > NUM_PICTURES
    assert f"{NUM_ANSWERS} answers, {digest.hexdigest()[:16]}" in said
