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
SMALL = ["--model.encoder-layers", "2"]
"""An encoder that does not take the time that the demo's own shows to be saved."""
pytestmark = pytest.mark.timeout(DEMO_TIMEOUT_S + 60)


def run_demo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mmcached", "demo", "--device", "cpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEMO_TIMEOUT_S, check=False, cwd=cwd)


def costs(output: str) -> dict[str, float]:
    """Return the milliseconds of each row of the cost table."""
    rows = ([cell.strip() for cell in line.strip("│|").split("│")] for line in output.splitlines() if "│" in line)
    return {row[0]: float(row[1].replace(",", "")) for row in rows}


def words(output: str) -> str:
    """Return an output as one line: a sentence may be broken anywhere."""
    return " ".join(output.split())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    done = run_demo(*SMALL, cwd=tmp_path_factory.mktemp("anywhere"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def output(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout


def test_demo_shows_what_a_photograph_costs_in_each_situation(output: str) -> None:
    situations = list(costs(output))
    assert situations == [
        "new: decode, process, encode",
        "again in this engine",
        "in another engine",
        "in a client, in place",
        "after kill -9 of the frontend",
        "after kill -9 of all engines",
    ]


def test_all_four_caches_hit_and_every_bit_is_the_same(output: str) -> None:
    rates = dict(re.findall(r"(processor|encoder|KV prefix|hidden states) (\d+)%", words(output)))
    assert set(rates) == {"processor", "encoder", "KV prefix", "hidden states"}
    assert all(int(rate) > 0 for rate in rates.values()), rates
    assert "bit-identical before the kills, after them, and with all caches off" in words(output)


def test_two_engines_encode_each_item_once_and_their_successors_none(output: str) -> None:
    found = re.search(
        r"encoded once: 18 photographs, 6 film slices, 3 sound slices \((\d+) \+ (\d+) by engine\); "
        r"read from the store by the other engines: (\d+)",
        words(output),
    )
    assert found is not None, output
    first, second, loaded = map(int, found.groups())
    assert first + second == 18 + 6 + 3
    assert min(first, second) > 0, "both engines encode"
    assert loaded >= 18, "each photograph in the engine that has not encoded it"
    after = re.search(r"after the kills: 0 items encoded, (\d+) read from the store", words(output))
    assert after is not None, output
    assert int(after[1]) >= 18


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
    assert "bit-identical before the kills" in words(done.stdout)
