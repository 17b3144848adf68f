"""What the Makefile promises, as far as it shows without installing anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import REPOSITORY


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder as after `git clone`: no environment yet."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tests/hosts/torchvision_on_cpu.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def make(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    # A variable given to the make that runs this test would reach the one under test.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def old_python(tmp_path: Path) -> Path:
    """An interpreter that takes itself for Python 3.10."""
    path = tmp_path / "old-python"
    path.write_text(f"""#!/bin/sh\nexec '{sys.executable}' -c "import sys; sys.version_info = (3, 10, 9); $2"\n""")
    path.chmod(0o700)
    return path


def test_an_old_python_is_refused_with_the_next_step(clone: Path, old_python: Path) -> None:
    assert_refused(clone, str(old_python))


def test_a_missing_python_is_refused_with_the_next_step(clone: Path) -> None:
    assert_refused(clone, "no-such-python")


def assert_refused(clone: Path, python: str) -> None:
    refused = make("test", f"PYTHON={python}", cwd=clone)
    assert refused.returncode != 0
    assert f"needs Python 3.11 or newer, and '{python}' is not" in refused.stderr
    assert "make PYTHON=" in refused.stderr
    assert not (clone / ".venv").exists()
