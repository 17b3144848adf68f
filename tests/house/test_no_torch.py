"""What must start at once never imports torch (seconds, hundreds of MiB); shown in a child, at run time.

The layers contract cannot show it: it counts an import inside a function, too.
"""

from __future__ import annotations

import subprocess
import sys

LIGHT = [
    "mmcached.cache.hasher",
    "mmcached.cli",
    "mmcached.cli.serve.supervisor",
    "mmcached.client",
    "mmcached.compat.kv_cache_manager",
    "mmcached.compat.multimodal.factories",
    "mmcached.compat.multimodal.receiver_cache",
    "mmcached.compat.multimodal.shm_receiver_cache",
    "mmcached.engine",
    "mmcached.engine.server.server",
    "mmcached.integrations.identity",
    "mmcached.client.saver",
    "mmcached.integrations.sglang",
    "mmcached.shm.ring.reader",
    "mmcached.shm.store.object_store",
    "mmcached.wire.config",
    "mmcached.wire.messages.frontend",
]


def imported_by(*arguments: str) -> set[str]:
    """Top-level names of what a child Python imports, from `-X importtime`."""
    child = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert child.returncode == 0, child.stderr
    lines = [line for line in child.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


def test_imports_leave_torch_out() -> None:
    """One child imports all; what it has loaded says which of them brings torch."""
    program = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    program += "    assert 'torch' not in sys.modules, name"
    assert "mmcached" in imported_by("-c", program, *LIGHT)


def test_wire_leaves_numpy_out() -> None:
    modules = ("mmcached.wire.config", "mmcached.wire.messages.frontend", "mmcached.wire.stats")
    assert "numpy" not in imported_by("-c", f"import {', '.join(modules)}")


def test_a_client_starts_without_what_only_some_need() -> None:
    """An event loop, ZeroMQ and logs take as long as all the rest; `AsyncClient` brings the first of these."""
    assert not {"asyncio", "zmq", "structlog", "ssl", "subprocess"} & imported_by("-c", "import mmcached.client")
    assert "asyncio" in imported_by("-c", "from mmcached.client import *")


def test_a_client_loads_what_lists_keys_with_the_first_list() -> None:
    imported_by("-c", "import sys, mmcached.client; sys.exit('mmcached.shm.ring.onlooker' in sys.modules)")


def test_the_supervisor_draws_nothing() -> None:
    """It would keep a library for tables for life."""
    as_serve_does = "import sys, mmcached.cli.app, mmcached.cli.logs.lines, mmcached.cli.serve.supervisor"
    assert imported_by("-c", f"{as_serve_does}; sys.exit('rich.console' in sys.modules)")


def test_only_kv_events_need_libzmq() -> None:
    roles = "mmcached.frontend.server, mmcached.engine.server.server, mmcached.cli.serve.supervisor"
    assert "zmq" not in imported_by("-c", f"import {roles}")
    assert "zmq" in imported_by("-c", "import mmcached.engine.server.kv_event_publisher")


def test_arming_comes_before_heavy_imports() -> None:
    """`python -m mmcached` asks for its parent-death signal before it imports the command line."""
    orphan = "import os, sys; os.environ['MMC_PARENT_PID'] = '1'; sys.argv = ['mmcached', 'worker']"
    run = "import runpy\ntry: runpy.run_module('mmcached', run_name='__main__')\nexcept SystemExit as end: print(end)"
    imported = imported_by("-c", f"{orphan}\n{run}")
    assert "ctypes" in imported
    assert not {"typer", "rich", "zmq", "numpy", "torch"} & imported
