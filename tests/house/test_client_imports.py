"""A client loads what a client needs; shown in a child, at run time."""

from __future__ import annotations

import subprocess
import sys

LAYERS_ABOVE = {"cli", "compat", "engine", "frontend", "integrations", "second_level", "worker"}
"""Packages of `mmcached` that belong to the service, to adapters, or to programs without the service."""


BOTH_CLIENTS = "from mmcached.client import Client, AsyncClient"


def loaded_by(statement: str) -> list[list[str]]:
    """Return all modules that a child Python has loaded after a statement, each as the parts of its name."""
    command = [sys.executable, "-c", f"import sys; {statement}; print(*sys.modules)"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [name.split(".") for name in listed.split()]


def test_a_client_loads_no_compat_no_server_and_no_torch() -> None:
    loaded = loaded_by(BOTH_CLIENTS)
    assert ["mmcached", "client", "asynchronous"] in loaded
    ours = [parts[1:] for parts in loaded if parts[0] == "mmcached" and len(parts) > 1]
    assert [parts for parts in ours if parts[0] in LAYERS_ABOVE or "compat" in parts] == []
    assert ["torch"] not in loaded


def test_a_client_loads_neither_the_writer_s_end_of_a_ring_nor_the_configuration() -> None:
    names = {".".join(parts) for parts in loaded_by(BOTH_CLIENTS)}
    assert "mmcached.shm.store.object_reader" in names
    writers = {"mmcached.shm.ring.ring", "mmcached.shm.ring.allocator", "mmcached.shm.store.object_store"}
    assert names & (writers | {"mmcached.wire.config", "mmcached.wire.limits"}) == set()
