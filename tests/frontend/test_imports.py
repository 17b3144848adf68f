"""P0 imports what it has a use for: never torch, which costs hundreds of MiB, and for a store nothing of images."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.paths import RunDir

OF_IMAGES = {"PIL", "blake3", "mmcached.cache.hasher", "mmcached.gateway.requests.item_making"}
START = """
import sys
from pathlib import Path
from mmcached.frontend.server import Frontend
from mmcached.wire.config import ServiceConfig
from mmcached.wire.paths import RunDir

directory = RunDir(Path(sys.argv[1]))
with Frontend(directory, ServiceConfig.load(directory.config)) as frontend:
    frontend.poll(0)
    print(*sys.modules)
"""


def printed(code: str, *arguments: str) -> set[str]:
    command = [sys.executable, "-c", code, *arguments]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())


def test_import_leaves_torch_out() -> None:
    imported = printed("import sys; from mmcached.frontend import MultiModalHasher; print(*sys.modules)")
    assert "mmcached.cache.hasher" in imported
    assert "torch" not in imported


@pytest.mark.parametrize("world_size", [0, 1])
def test_a_store_imports_nothing_that_processes_images(world_size: int, run_dir: Path) -> None:
    directory = RunDir(run_dir)
    directory.create()
    config = ServiceConfig(world_size=world_size, store_gb=MIB / (1 << 30), mm_processor_cache_gb=MIB / (1 << 30))
    config.save(directory.config)
    imported = printed(START, str(run_dir))
    assert imported & OF_IMAGES == (OF_IMAGES if world_size else set())
    assert imported & {"torch", "typer", "transformers", "tokenizers"} == set()
