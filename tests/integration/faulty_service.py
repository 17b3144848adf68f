"""`mmcached serve` whose workers are another module; everything else is as users have it. Also run as a module."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

from mmcached.cli import main
from mmcached.cli.serve.child_service import ChildService
from mmcached.wire.config import ServiceConfig
from mmcached.wire.process.death import arm_from_environment

MODULE = "tests.integration.faulty_service"
LYING_WORKER = "tests.integration.lying_worker"
DEADLY_WORKER = "tests.integration.deadly_worker"
_WORKER = "FAULTY_SERVICE_WORKER"
"""Name of the variable that says which module workers are."""
ROOT = Path(__file__).parents[2]


def faulty_service(run_dir: Path, config: ServiceConfig, config_file: Path, worker: str) -> ChildService:
    """Start the service with this module for its workers; see `ChildService`."""
    serve = mock.patch.object(subprocess, "Popen", _with_module("serve", MODULE))
    with serve, mock.patch.dict(os.environ, {_WORKER: worker}):
        return ChildService(run_dir, config, config_file)


def _with_module(verb: str, module: str) -> Any:
    """Return a `Popen` that runs this verb of `python -m mmcached` by another module."""
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if command[1:4] == ["-m", "mmcached", verb]:
            command = [*command[:2], module, *command[3:]]
        return popen(command, cwd=ROOT, **options)

    return start


if __name__ == "__main__":
    arm_from_environment()
    with mock.patch.object(subprocess, "Popen", _with_module("worker", os.environ[_WORKER])):
        main()
