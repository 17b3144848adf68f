"""Makes what the tests of this folder share: checkpoints, a store, the answers of a server that has nothing of ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from tests.hosts.prompts import MAX_PIXELS
from tests.hosts.vllm.sharing import store_config

MakeCheckpoint = Callable[[str], Path]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> MakeCheckpoint:
    """`checkpoint(kind)`: the folder of a tiny model, made when it is first asked for."""

    @cache
    def make(kind: str) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        words = ["-m", "tests.hosts.checkpoints", kind, str(folder), "--max-pixels", str(MAX_PIXELS)]
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        return folder

    return make


@pytest.fixture(scope="module")
def service_dir() -> Iterator[Path]:
    """A private folder with a short path, which tests of a module share."""
    path = Path(tempfile.mkdtemp(prefix="mmc-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def store(service_dir: Path) -> Iterator[ChildService]:
    with ChildService(service_dir / "s", store_config(), service_dir / "config.json") as service:
        yield service
