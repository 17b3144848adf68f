"""A client of the previous version is told what it is, and the frontend serves everybody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mmcached.wire.config import ServiceConfig
from mmcached.wire.version import PROTOCOL_VERSION
from tests.clock import Clock
from tests.frontend.fake_peers import Bench

OLD_CLIENT = """
import sys
from mmcached.wire import version
version.PROTOCOL_VERSION -= 1  # before anything has taken it
from mmcached.client import Client
from mmcached.wire.errors import RemoteProtocolError
try:
    Client(sys.argv[1], fail_open=False)
except RemoteProtocolError as error:
    print(error)
Client(sys.argv[1])  # to which it is a service that is not there
"""


def test_a_client_of_the_previous_version_is_told_to_upgrade(run_dir: Path) -> None:
    with Bench(run_dir, ServiceConfig(world_size=0, store_gb=1 / 256), Clock()) as bench:
        command = [sys.executable, "-c", OLD_CLIENT, str(run_dir)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            bench.pump(lambda: child.poll() is not None)
            assert child.stdout is not None
            said = child.stdout.read()
        assert child.returncode == 0
        assert f"protocol version {PROTOCOL_VERSION}, this side speaks {PROTOCOL_VERSION - 1}" in said
        assert "upgrade the older side" in said
        assert bench.connect_client().put("key", {"x": 1}).is_stored
