"""The suite plays the same examples in every run; the soak plays new ones, and more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.house.drawing import SOAK_FACTOR

TESTS = Path(__file__).parents[1]

PROPERTY = """
from hypothesis import given, settings, strategies
from tests.house.drawing import examples

@settings(max_examples=examples(5))
@given(strategies.integers())
def test_any_number(number):
    with open({path!r}, "a") as file:
        file.write(f"{{number}}\\n")
"""


def played(tmp_path: Path, *options: str) -> list[str]:
    """Run a property test in a session of its own; return the numbers that it was given."""
    numbers = tmp_path / "numbers"
    numbers.unlink(missing_ok=True)
    module = TESTS / "house" / f"drawn_{tmp_path.name}.py"
    module.write_text(PROPERTY.format(path=str(numbers)))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(module)]
        ended = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=100)
    finally:
        module.unlink()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return numbers.read_text().split()


def test_the_suite_plays_the_same_examples_in_every_run_and_the_soak_more_of_them(tmp_path: Path) -> None:
    first = played(tmp_path)
    assert played(tmp_path) == first
    soak = played(tmp_path, "--hypothesis-profile=soak", "--hypothesis-seed=1")
    assert len(soak) >= SOAK_FACTOR * len(first) // 2
    assert soak[: len(first)] != first
