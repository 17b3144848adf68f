"""`mmcached serve` whose workers are `lying_worker`s; everything else is as users have it. Also run as a module."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

from mmcached.cli import main
from mmcached.cli.child_service import ChildService
from mmcached.wire.config import ServiceConfig
from mmcached.wire.death import arm_from_environment

MODULE = "tests.integration.faulty_service"
WORKER = "tests.integration.lying_worker"
ROOT = Path(__file__).parents[2]


def faulty_service(run_dir: Path, config: ServiceConfig, config_file: Path) -> ChildService:
    """Start the service; see `ChildService`."""
    with mock.patch.object(subprocess, "Popen", _with_module("serve", MODULE)):
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
    with mock.patch.object(subprocess, "Popen", _with_module("worker", WORKER)):
        main()
