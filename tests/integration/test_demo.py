"""`mmcached demo`, as its users run it: hits in all four caches, each item encoded once, all bit-identical."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

DEMO_TIMEOUT_S = 240
pytestmark = pytest.mark.timeout(DEMO_TIMEOUT_S + 60)


def run_demo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mmcached", "demo", "--device", "cpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEMO_TIMEOUT_S, check=False, cwd=cwd)


def cells(output: str, num_cells: int) -> dict[str, list[str]]:
    """Return the rows of so many cells, by what stands in the first."""
    rows = ([cell.strip() for cell in re.split("[│|]", line) if cell.strip()] for line in output.splitlines())
    return {row[0]: row[1:] for row in rows if len(row) == num_cells}


def hits(output: str) -> dict[str, int]:
    """Return the hits column of the four caches' rows."""
    return {name.split(" (")[0]: int(row[1].replace(",", "")) for name, row in cells(output, 5).items()}


def where(output: str) -> dict[str, list[int]]:
    """Return what was encoded, and loaded, by each engine and together."""
    return {name: list(map(int, row)) for name, row in cells(output, 4).items()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    done = run_demo(cwd=tmp_path_factory.mktemp("anywhere"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def output(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout


def test_demo_hits_in_all_four_caches_and_is_bit_identical(output: str) -> None:
    found = hits(output)
    assert set(found) == {"processor", "encoder", "KV prefix", "tensor prefix"}
    assert all(count > 0 for count in found.values()), found
    assert "bit-identical" in output
    assert "0 B (2 readers)" in output


def test_two_engines_encode_each_item_once_and_their_successors_none(output: str) -> None:
    found = where(output)
    encoded = [row for name, row in found.items() if name.startswith("encoded: ")]
    assert [row[-1] for row in encoded] == [18, 6, 3], "photographs, slices of the film, slices of the sound"
    assert all(map(sum, list(zip(*encoded, strict=True))[:-1])), "both have work"
    assert found["after the kills: encoded"] == [0, 0, 0]
    assert found["after the kills: loaded from the store"][-1] >= 19, "all of which the conversations are"


def test_who_kills_on_purpose_is_not_warned(done: subprocess.CompletedProcess[str]) -> None:
    assert done.stderr == ""


def numbers_to_hashes(lines: Sequence[str]) -> list[str]:
    """Leave the words of an output and forget its figures, which differ from run to run, and the table's widths."""
    plain = (re.sub("[─━┃│┏┓┗┛┡┩└┘├┤┼┬┴╇╈╋┳┻╸╺ ]+", " ", line) for line in lines)
    words = (re.sub(r"[\d.,:%-]+x?", "#", line).strip() for line in plain)
    return [line for line in words if line.strip("# ")]


def test_readme_shows_the_demos_real_output(output: str) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    block = re.search(r"```text demo\n(.*?)```", readme, re.DOTALL)
    assert block is not None, "the README has a ```text demo block"
    assert numbers_to_hashes(block.group(1).splitlines()) == numbers_to_hashes(output.splitlines())


@pytest.mark.soak
def test_demo_takes_the_users_own_images(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(2):
        Image.linear_gradient("L").resize((70 + 50 * index, 90)).convert("RGB").save(folder / f"{index}.png")
    done = run_demo("--images", str(folder), "--users", "2", "--turns", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 photographs, a film, a sound; 3 users" in done.stdout
    assert "bit-identical" in done.stdout
