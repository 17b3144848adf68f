"""Starts a store for SGLang's own code, and says what every test of it needs."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
with warnings.catch_warnings():  # it says at import what a machine without a GPU does not have
    warnings.simplefilter("ignore")
    for module in ("disaggregation.encoder.runtime", "managers.scheduler", "mem_cache.embedding_cache_controller"):
        importlib.import_module(f"sglang.srt.{module}")

from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs

from mmcached.wire.config import ServiceConfig
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import small_config

DEADLINE_S = 60.0


def store_config() -> ServiceConfig:
    return small_config(store_gb=1 / 4, store_max_object_mb=32)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2.5-VL with random weights."""
    folder = tmp_path_factory.mktemp("checkpoint")
    subprocess.run([sys.executable, "-m", "tests.hosts.checkpoints", "qwen2_5_vl", str(folder)], check=True)
    return folder


@pytest.fixture
def store(run_dir: Path) -> Iterator[LoneFrontend]:
    """A service, to be killed and started again as a test wants."""
    with LoneFrontend(run_dir / "s", store_config()) as store:
        yield store


@pytest.fixture
def environment(store: LoneFrontend, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as one of SGLang whose plugin reaches the store."""
    monkeypatch.setenv("MMCACHED_RUN_DIR", str(store.directory.path))


@pytest.fixture
def published(checkpoint: Path) -> Callable[..., None]:
    """Return what publishes the arguments of a server with that checkpoint."""

    def with_arguments(**changed: object) -> None:
        arguments = ServerArgs(**({"model_path": str(checkpoint), "device": "cpu"} | changed))
        publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=0, gpu_id=0))

    return with_arguments
