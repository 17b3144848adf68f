"""How many threads a worker computes with is its environment's word, which the supervisor or the user has set."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmcached.wire.config import ServiceConfig
from mmcached.wire.paths import RunDir

WORKER = """
import sys
from pathlib import Path
import torch
from mmcached.wire.errors import ConfigError
from mmcached.worker import server

def say(*arguments, **options):
    sys.stdout.write(str(torch.get_num_threads()))
    raise ConfigError("test", 0, "that is all")

server.ModelRunner = say
server.main(Path(sys.argv[1]), 0, 0)
"""


@pytest.mark.soak
def test_omp_num_threads_is_respected(run_dir: Path) -> None:
    ServiceConfig(world_size=1, device="cpu").save(RunDir(run_dir).config)
    said = subprocess.run(
        [sys.executable, "-c", WORKER, str(run_dir)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert said.stdout == "1"
