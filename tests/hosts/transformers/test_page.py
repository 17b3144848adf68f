"""The page for Transformers is true: its commands and its code run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmcached.client import Client
from tests.hosts.transformers import models
from tests.house import REPOSITORY
from tests.integration.processes import DEADLINE_S

PAGE = (REPOSITORY / "docs" / "hosts" / "transformers.md").read_text()
PICTURES = ("cat.png", "dog.png")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, two pictures and the examples."""
    folder = tmp_path_factory.mktemp("desk")
    models.save_llava(folder / "model")
    for seed, name in enumerate(PICTURES):
        pixels = np.random.default_rng(seed).integers(0, 255, (80, 60, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)
    (folder / "examples").symlink_to(REPOSITORY / "examples")
    return folder


def test_the_commands_do_what_the_page_says(desk: Path, run_dir: Path) -> None:
    service, questions = blocks("sh run")
    environment = {
        **os.environ,
        "RUN_DIR": str(run_dir / "s"),
        "MODEL": str(desk / "model"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    script = f"""set -eu
mmcached() {{ exec python -m mmcached "$@" --store-gb 0.02; }}
{service}
{questions}
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
        timeout=2 * DEADLINE_S,
    )
    said = [line for line in ended.stdout.splitlines() if line.startswith(("cat", "dog", "processed", "encoded"))]
    first, second = said[:4], said[4:]
    assert first[2:] == ["processed here: 2 of 2 pictures", "encoded here: 2 of 2 pictures"]
    assert second[2:] == ["processed here: 0 of 2 pictures", "encoded here: 0 of 2 pictures"]
    assert sorted(first[:2]) == sorted(second[:2])
    assert len({line.partition(": ")[2] for line in first[:2]}) == 2, "the answers differ"
    for line in (first[3], second[3]):
        assert f"`{line}`" in PAGE


def test_the_code_runs(desk: Path, client: Client, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = AutoModelForImageTextToText.from_pretrained(desk / "model").eval()
    processor = AutoProcessor.from_pretrained(desk / "model")
    cat = Image.open(desk / PICTURES[0])
    inputs = processor(text="<image> word7", images=cat, return_tensors="pt")
    names: dict[str, Any] = {"run_dir": run_dir, "model": model, "processor": processor, "inputs": inputs}
    names["cat_png"] = desk / PICTURES[0]
    for block in blocks("python"):
        exec(block, names)
    names["client"].close()
    assert capsys.readouterr().out == "1 1 0 0\n"
    assert names["pixels"].equal(inputs["pixel_values"])
