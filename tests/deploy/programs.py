"""Finds and runs the programs that judge what lies under deploy/."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house import REPOSITORY

BROUGHT = REPOSITORY / ".deploy-tools" / "bin"
"""Made by tools.sh beside this file."""


def program(name: str) -> str:
    """Return the path of a program: the one that was brought, or this machine's; skip the test if there is none."""
    found = shutil.which(name, path=str(BROUGHT)) or shutil.which(name)
    return found or pytest.skip(f"{name} is not here: `make test-deploy` brings what it can")


def run(name: str, *arguments: str | Path, text: str = "", cwd: Path = REPOSITORY) -> str:
    """Run a program to its end, and return what it wrote; fail with that if its status is not 0."""
    done = subprocess.run(
        [program(name), *map(str, arguments)],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=cwd,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
