"""Runs one role, as the supervisor starts it; its configuration is in the run directory.

Does not import typer, which would stay in the role's memory.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mmcached.cli.logs.lines import set_up_logging
from mmcached.cli.terminal_text import shown
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError
from mmcached.wire.paths import RunDir
from mmcached.wire.process.descriptors import raise_descriptor_limit


def main() -> NoReturn:
    """Run the role that the command line names; a typed error becomes one line on stderr and exit status 1."""
    try:
        sys.exit(_run(sys.argv[1], sys.argv[2:]))
    except MmcachedError as error:
        sys.stderr.write(f"mmcached: {error.code}: {shown(str(error))}\n")
        sys.exit(1)


def _run(role: str, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"mmcached {role}", allow_abbrev=False)
    parser.add_argument("--run-dir", type=Path, required=True, help="of the service; holds its config.json")
    if role in ("engine", "worker"):
        parser.add_argument("--index", type=int, default=0, metavar="ENGINE")
    if role == "worker":
        parser.add_argument("--rank", type=int, required=True)
    given = parser.parse_args(arguments)
    raise_descriptor_limit()
    directory = RunDir(given.run_dir)
    directory.check()
    number = {"engine": " {index}", "worker": " {index}.{rank}"}.get(role, "").format(**vars(given))
    config = ServiceConfig.load(directory.config)
    set_up_logging(role.replace("-", " ") + number, config)
    if role == "frontend":
        return _run_frontend(given.run_dir, config)
    if role == "second-level":
        from mmcached.second_level import process as second_level

        _leave(second_level.main(given.run_dir))
    if role == "engine":
        from mmcached.engine.server import server as engine

        return engine.main(given.run_dir, given.index)
    from mmcached.worker import server as worker

    return worker.main(given.run_dir, given.index, given.rank)


def _run_frontend(run_dir: Path, config: ServiceConfig) -> int:
    """Run the frontend with a gateway; without workers it is a store alone, and imports nothing of the gateway."""
    from mmcached.frontend import server

    if config.has_workers:
        from mmcached.gateway.gateway import ModelGateway

        return server.main(run_dir, ModelGateway)
    from mmcached.frontend.store_alone import StoreAlone

    return server.main(run_dir, StoreAlone)


def _leave(status: int) -> NoReturn:
    """End this process without Python's shutdown, which a thread stuck in a library would abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
