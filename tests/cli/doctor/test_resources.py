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


def in_child(limits: str, check: str) -> Finding:
    code = (
        "import os, resource, sys, msgspec\nfrom pathlib import Path\nfrom mmcached.cli.doctor import resources\n"
        "from mmcached.cli.doctor.finding import Host\n"
        f"{limits}\nsys.stdout.write(msgspec.json.encode(resources.{check}(Host(Path('/nowhere')))).decode())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=DEADLINE_S)
    return msgspec.json.decode(done.stdout, type=Finding)


@pytest.mark.parametrize(("limit", "level"), [(100, "problem"), (512, "warning"), (4096, "ok")])
def test_descriptors(limit: int, level: str) -> None:
    found = in_child(f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))", "open_files")
    assert (found.level, str(limit) in found.what) == (level, True)
    assert level == "ok" or "LimitNOFILE=" in found.mend


def test_locked_memory(tmp_path: Path) -> None:
    found = in_child("resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))", "locked_memory")
    assert "memlock 1 MiB" in found.what
    head = "Filename\tType\tSize\tUsed\tPriority\n"
    assert resources.locked_memory(a_host(tmp_path, {"proc/swaps": head})).level == "ok"
    found = resources.locked_memory(a_host(tmp_path, {"proc/swaps": f"{head}/swap.img file 1 0 -2\n"}))
    assert (found.level, found.mend) == ("warning", "swapoff -a")


def test_cores(tmp_path: Path) -> None:
    one = in_child("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", "cores")
    assert (one.level, one.what.split()[0]) == ("warning", "1")
    assert resources.cores(a_host(tmp_path, config=STORE)).level == "ok"
    found = resources.cores(a_host(tmp_path, {"sys/fs/cgroup/cpu.max": "50000 100000\n"}, config=STORE))
    assert (found.level, found.what.split()[0], "cpu.max" in found.mend) == ("warning", "0.5", True)


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
    assert (found.level, "pip install" in found.mend) == ("problem", True)
