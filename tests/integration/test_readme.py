"""What the README shows is run: its commands, its example, its tree. (Its demo output: `test_demo`.)"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.integration.local_service import LocalService
from tests.integration.processes import DEADLINE_S, small_config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_example_runs(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("python")
    Image.fromarray(np.full((50, 70, 3), 99, np.uint8)).save(tmp_path / "cat.png")
    monkeypatch.chdir(tmp_path)
    with LocalService(run_dir, small_config(world_size=1)):
        exec(compile(code, "README.md", "exec"), {"run_dir": run_dir})
    printed = capsys.readouterr().out.splitlines()
    assert "torch.Size" in printed[0]
    assert printed[1] == "1", "the second call found the image in the processor cache"


def test_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = re.findall(r"^make ([a-z]+)", "\n".join(blocks("sh")), re.MULTILINE)
    assert {"demo", "test"} <= set(shown) <= targets


@pytest.mark.parametrize("launcher", [["-m", "mmcached", "serve"], [str(ROOT / "scripts" / "supervisor.py")]])
def test_serve_command_starts_as_shown(run_dir: Path, launcher: list[str]) -> None:
    (line,) = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("mmcached serve")]
    arguments = shlex.split(line)[2:]
    arguments[arguments.index("--run-dir") + 1] = str(run_dir / "s")
    process = subprocess.Popen([sys.executable, *launcher, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("mmcached ready")
    finally:
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
        if process.stdout is not None:
            process.stdout.close()


def test_tree_names_what_is_there() -> None:
    (tree,) = blocks("text tree")
    for line in tree.splitlines():
        assert (ROOT / line.split()[0]).is_dir(), line


def test_what_it_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
