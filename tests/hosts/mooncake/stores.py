"""Starts real masters of Mooncake Store, and processes that lend them memory; a test stops and kills them."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path

from mmcached.second_level.backend import BackendError
from mmcached.second_level.mooncake.master import reach
from mmcached.second_level.mooncake.place import MooncakePlace
from tests.second_level.programs import Program
from tests.second_level.servers import free_ports

STARTS_WITHIN_S = 30.0
LENT_MB = 256
LEASE_MS = 30_000
"""How long what was read is not evicted; a read that takes longer fails."""
LOST_AFTER_S, LIVES_S = 2, 60
"""Until a silent process that lent memory is taken for dead: where a test kills one, and where none dies."""


def _command(program: str, *options: str) -> list[str]:
    """Return the command of a program of Mooncake's wheel."""
    spec = find_spec("mooncake")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return [str(Path(spec.submodule_search_locations[0]) / program), *options]


class Master(Program):
    """A master, which knows where what lies; it has no memory of its own.

    Args:
        client_ttl_s: Seconds after which a silent process that lent memory is taken for dead.
    """

    def __init__(self, *, client_ttl_s: int = LOST_AFTER_S) -> None:
        self.port = free_ports(1)[0]
        command = _command(
            "mooncake_master",
            f"-rpc_port={self.port}",
            "-rpc_address=127.0.0.1",
            f"-metrics_port={free_ports(1)[0]}",
            "-metrics_host=127.0.0.1",
            f"-default_kv_lease_ttl={LEASE_MS}",
            f"-client_ttl={client_ttl_s}",
        )
        super().__init__(command)

    @property
    def url(self) -> str:
        """Return the URL of a process that lends nothing."""
        return f"mooncake://127.0.0.1:{self.port}?segment_mb=0&buffer_mb=128"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        super().start()
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            try:
                reach(MooncakePlace(f"127.0.0.1:{self.port}"))
                return
            except BackendError:
                assert time.monotonic() < deadline, "the master does not start"
                assert self._process.poll() is None, "the master has ended"
                time.sleep(0.01)


class Lender(Program):
    """A process of Mooncake's own that lends memory, as an operator starts one on each host."""

    def __init__(self, master: Master) -> None:
        command = _command(
            "mooncake_client",
            f"-master_server_address=127.0.0.1:{master.port}",
            "-metadata_server=P2PHANDSHAKE",
            "-host=127.0.0.1",
            f"-port={free_ports(1)[0]}",
            f"-global_segment_size={LENT_MB}MB",
            "-protocol=tcp",
        )
        super().__init__(command)
