"""P0 imports only what it uses: never torch, which takes hundreds of MiB; without workers nothing of the gateway."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmcached.shm.stats.page import StatsPage
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.paths import RunDir

OF_IMAGES = {"PIL", "blake3", "mmcached.cache.hasher", "mmcached.gateway.requests.item_making"}
ROLE = """
import os, signal, sys
from mmcached.cli import role
from mmcached.frontend.server import Frontend

poll = Frontend.poll

def poll_once(frontend, timeout_s):
    poll(frontend, 0.0)
    print(*sys.modules)
    os.kill(os.getpid(), signal.SIGTERM)

Frontend.poll = poll_once
role.main()
"""


def printed(code: str, *arguments: str) -> set[str]:
    command = [sys.executable, "-c", code, *arguments]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split())


def test_import_leaves_torch_out() -> None:
    imported = printed("import sys; from mmcached.frontend import MultiModalHasher; print(*sys.modules)")
    assert "mmcached.cache.hasher" in imported
    assert "torch" not in imported


@pytest.mark.parametrize("world_size", [0, 1])
def test_the_role_of_a_store_imports_nothing_of_the_gateway(world_size: int, run_dir: Path) -> None:
    directory = RunDir(run_dir)
    directory.create()
    config = ServiceConfig(world_size=world_size, store_gb=MIB / (1 << 30), mm_processor_cache_gb=MIB / (1 << 30))
    config.save(directory.config)
    page = StatsPage.create(directory.stats_page)
    try:
        imported = printed(ROLE, "frontend", "--run-dir", str(run_dir))
    finally:
        page.close()
    assert "mmcached.frontend.store.store_service" in imported
    of_gateway = {module for module in imported if module.startswith("mmcached.gateway")}
    assert bool(of_gateway) == bool(world_size), of_gateway
    assert imported & OF_IMAGES == (OF_IMAGES if world_size else set())
    assert imported & {"torch", "typer", "transformers", "tokenizers"} == set()
