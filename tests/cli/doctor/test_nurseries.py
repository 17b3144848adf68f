"""The check says how many nurseries there are, and why a client more would have none."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from mmcached.cli.doctor.finding import CheckedHost
from mmcached.cli.doctor.nurseries import nurseries
from mmcached.client import Client
from mmcached.wire.config import GIB, MIB, ServiceConfig
from mmcached.wire.limits import LimitsConfig
from tests.cli.doctor.hosts import a_host
from tests.integration.lone_frontend import LoneFrontend

STORE = ServiceConfig(world_size=0, store_gb=32 * MIB / GIB, store_max_clients=4, limits=LimitsConfig(max_nurseries=2))


@pytest.mark.parametrize(
    ("store_mib", "share", "level", "said"),
    [
        (0, 0.25, "ok", "store_gb = 0"),
        (32, 0.0, "ok", "store_nursery_share = 0): large puts go through the socket"),
        (8, 0.25, "warning", "is 2 MiB, and less than 4 MiB: large puts go through the socket"),
        (32, 0.25, "ok", "no service in"),
    ],
)
def test_whether_there_may_be_nurseries(run_dir: Path, store_mib: int, share: float, level: str, said: str) -> None:
    config = replace(STORE, world_size=int(not store_mib), store_gb=store_mib * MIB / GIB, store_nursery_share=share)
    found = nurseries(CheckedHost(run_dir, config))
    assert (found.level, said in found.what) == (level, True), found


def test_nurseries_of_a_service(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has room for one more, no room, no descriptor, and at last as many nurseries as it may have."""
    record = {"x": np.zeros(MIB, np.uint8)}
    with LoneFrontend(run_dir, STORE) as frontend, Client(run_dir) as first, Client(run_dir) as second:
        host = CheckedHost(run_dir, STORE)
        assert nurseries(host).what.startswith("0 of at most 2, 0 MiB of 8 MiB")
        assert first.put("a", record)
        found = nurseries(host)
        assert (found.level, found.what.startswith("1 of at most 2, ")) == ("ok", True), found

        proc = {
            f"proc/{frontend.process.pid}/limits": "Max open files            66                   66         files\n",
            f"proc/{frontend.process.pid}/fd/0": "",
        }
        here = a_host(tmp_path, proc, run_dir=run_dir, config=STORE)
        assert nurseries(here).level == "ok"
        (tmp_path / f"proc/{frontend.process.pid}/fd/1").touch()
        found = nurseries(here)
        assert (found.level, "no descriptor" in found.what, "LimitNOFILE=" in found.fix) == ("warning", True, True)

        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=1024, f_frsize=4096))
            found = nurseries(host)
        assert (found.level, "room for 4 MiB more" in found.what) == ("warning", True), found
        assert "--shm-size=" in found.fix

        assert second.put("b", record)
        found = nurseries(host)
        assert (found.level, found.what.startswith("2 of at most 2, ")) == ("warning", True), found
        assert "limits.max_nurseries" in found.fix
