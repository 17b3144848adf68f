"""Makes a checkpoint and a store for LMDeploy's own `ImageEncoder`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.lmdeploy.encoder_child import Encoder
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import small_config


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaVA with random weights."""
    folder = tmp_path_factory.mktemp("checkpoint")
    words = [sys.executable, "-m", "tests.hosts.checkpoints", "llava", str(folder)]
    subprocess.run(words, check=True, capture_output=True)
    return folder


@pytest.fixture
def store(run_dir: Path) -> Iterator[LoneFrontend]:
    """A service, to be killed and started again as a test wants."""
    with LoneFrontend(run_dir / "s", small_config(store_gb=1 / 16)) as store:
        yield store


@pytest.fixture
def new_encoder(checkpoint: Path, store: LoneFrontend) -> Iterator[Callable[..., Encoder]]:
    """`new_encoder(**options)`: an encoder in this process, with the store's run directory."""
    encoders: list[Encoder] = []

    def make(**options: Any) -> Encoder:
        encoders.append(Encoder(checkpoint, store.directory.path, **options))
        return encoders[-1]

    yield make
    for encoder in encoders:
        encoder.close()
