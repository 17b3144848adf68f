"""Each check of what a process may take fails in a child that may take less."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mmcached.cli.doctor import resources
from mmcached.cli.doctor.finding import Finding
from mmcached.wire.config import ServiceConfig
from tests.cli.doctor.hosts import a_host
from tests.shm.processes import DEADLINE_S

STORE = ServiceConfig(world_size=0)


LESS_AND_LESS = """
import os, resource, sys, msgspec
from pathlib import Path
from mmcached.cli.doctor import resources
from mmcached.cli.doctor.finding import CheckedHost
host, found = CheckedHost(Path("/nowhere")), {}
for limit in (4096, 512, 100):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    found[f"{limit} files"] = resources.open_files(host)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
found["locked"] = resources.locked_memory(host)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
found["one core"] = resources.cores(host)
sys.stdout.write(msgspec.json.encode(found).decode())
"""


def test_a_process_that_may_take_less_and_less() -> None:
    done = subprocess.run([sys.executable, "-c", LESS_AND_LESS], capture_output=True, check=True, timeout=DEADLINE_S)
    found = msgspec.json.decode(done.stdout, type=dict[str, Finding])
    for limit, level in ((4096, "ok"), (512, "warning"), (100, "problem")):
        files = found[f"{limit} files"]
        assert (files.level, str(limit) in files.what) == (level, True)
        assert level == "ok" or "LimitNOFILE=" in files.fix
    assert "256 clients and 256 nurseries need 576" in found["512 files"].what
    assert "memlock 1 MiB" in found["locked"].what
    assert (found["one core"].level, found["one core"].what.split()[0]) == ("warning", "1")


def test_locked_memory(tmp_path: Path) -> None:
    head = "Filename\tType\tSize\tUsed\tPriority\n"
    assert resources.locked_memory(a_host(tmp_path, {"proc/swaps": head})).level == "ok"
    found = resources.locked_memory(a_host(tmp_path, {"proc/swaps": f"{head}/swap.img file 1 0 -2\n"}))
    assert (found.level, found.fix) == ("warning", "swapoff -a")


def test_cores(tmp_path: Path) -> None:
    assert resources.cores(a_host(tmp_path, config=STORE)).level == "ok"
    found = resources.cores(a_host(tmp_path, {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, config=STORE))
    assert (found.level, found.what.split()[0], "cpu.max" in found.fix) == ("warning", "0.5", True)


def test_torch_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resources.devices(a_host(tmp_path, config=STORE)).level == "ok"
    on_cuda = ServiceConfig(device="cuda:0")
    found = resources.devices(a_host(tmp_path, config=on_cuda))
    assert (found.level, "NVIDIA devices: none" in found.what) == ("problem", True)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert resources.devices(a_host(tmp_path, config=on_cuda)).level == "ok"
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found = resources.devices(a_host(tmp_path, config=on_cuda, loads_torch=True))
    assert "torch sees nothing: it died" in found.what
    monkeypatch.setattr(resources, "find_spec", lambda name: None)
    found = resources.devices(a_host(tmp_path))
    assert (found.level, "pip install" in found.fix) == ("problem", True)
