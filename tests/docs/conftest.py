"""The site, built once for all tests that look at it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.house import REPOSITORY

MKDOCS = REPOSITORY / ".venv-release" / "bin" / "mkdocs"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not MKDOCS.exists():
        pytest.skip("`make test-docs` brings mkdocs")
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command: list[str | Path] = [MKDOCS, "build", "--strict", "--site-dir", folder]
    built = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder
