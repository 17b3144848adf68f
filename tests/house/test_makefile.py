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


def test_help_is_the_default_and_names_every_target(clone: Path) -> None:
    shown = make(cwd=clone).stdout
    for target in ("help", "demo", "test", "lint", "soak", "bench", "docs", "clean"):
        assert f"  make {target} " in shown


def test_test_runs_every_check_after_installing(clone: Path) -> None:
    commands = make("-n", "test", cwd=clone).stdout
    steps = ["pip install", "touch", "ruff check", "ruff format --check", "bin/mypy", "lint_imports.py", "-m pytest"]
    places = [commands.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize(
    "target", ["demo", "test", "test-vllm", "test-transformers", "test-ray", "docs", "bench-peers"]
)
def test_it_says_what_it_installs_before_pip_is_quiet(clone: Path, target: str) -> None:
    (clone / "scripts" / "bench").mkdir(parents=True)
    (clone / "scripts" / "bench" / "peers.txt").touch()
    commands = make("-n", target, cwd=clone).stdout
    said, installs = commands.find('echo "installing '), commands.find("pip install")
    assert 0 <= said < installs
    assert " GB" in commands[said:installs] or " MB" in commands[said:installs]


def test_a_host_has_an_environment_of_its_own(clone: Path) -> None:
    for target, environment in (
        ("test-vllm", ".venv-vllm"),
        ("test-sglang", ".venv-vllm"),
        ("test-transformers", ".venv-transformers"),
        ("test-ray", ".venv-ray"),
        ("test-mooncake", ".venv-mooncake"),
    ):
        commands = make("-n", target, cwd=clone).stdout
        assert f"{environment}/bin/python -m pip install" in commands
        assert f'{environment}/bin/python -m pytest -m "not soak" ' in commands
        assert f'{environment}/bin/python -m pytest -m "not chaos" ' in make("-n", "soak", cwd=clone).stdout


def test_constraints_can_be_replaced_or_left_out(clone: Path) -> None:
    for option in ("--constraint", "--build-constraint"):
        assert f"{option} constraints.txt" in make("-n", "test", cwd=clone).stdout
    (clone / "other.txt").touch()
    assert "--constraint other.txt" in make("-n", "test", "CONSTRAINTS=other.txt", cwd=clone).stdout
    assert "-constraint" not in make("-n", "test", "CONSTRAINTS=", cwd=clone).stdout


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


def test_an_environment_made_for_these_files_is_kept(clone: Path) -> None:
    (clone / ".venv").mkdir()
    (clone / ".venv" / ".installed").touch()
    assert "pip install" not in make("-n", "test", cwd=clone).stdout
    os.utime(clone / "constraints.txt", (2**31, 2**31))
    assert "pip install" in make("-n", "test", cwd=clone).stdout
