"""Each check of memory fails on a host that is made for it, and passes on one that gives enough."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from mmcached.cli.doctor import memory
from mmcached.shm import sweep
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.ring_notes import remove_notes
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import RingAnnouncement
from tests.cli.doctor.hosts import a_host
from tests.shm.processes import Process
from tests.shm.rings import leave_ring

SMALL = ServiceConfig(world_size=0, store_gb=1 / 64)
HUGE = ServiceConfig(world_size=0, store_gb=4096)


def test_the_size_of_shm(tmp_path: Path) -> None:
    found = memory.shm_size(a_host(tmp_path, {"proc/mounts": "none /dev/shm tmpfs rw 0 0\n"}, config=SMALL))
    assert found.level == "ok", found
    found = memory.shm_size(a_host(tmp_path, config=HUGE))
    assert (found.level, "ring and store take 4096" in found.what) == ("warning", True)
    assert "--shm-size=" in found.fix
    mounts = "none /dev/shm tmpfs rw 0 0\n/dev/sda1 /dev/shm ext4 rw 0 0\n"
    found = memory.shm_size(a_host(tmp_path, {"proc/mounts": mounts}, config=SMALL))
    assert (found.level, "is of type ext4" in found.what) == ("problem", True)


@pytest.mark.parametrize(
    ("fstab", "level", "then"),
    [
        ("", "ok", "8.0 GiB"),
        ("tmpfs /dev/shm tmpfs rw,size=25%,mode=1777 0 0", "ok", "4.0 GiB"),
        ("tmpfs /dev/shm tmpfs size=8m 0 0", "warning", "8 MiB"),
        ("#tmpfs /dev/shm tmpfs size=8m 0 0", "ok", "8.0 GiB"),
    ],
)
def test_shm_after_a_boot(tmp_path: Path, fstab: str, level: str, then: str) -> None:
    found = memory.shm_after_restart(a_host(tmp_path, {"etc/fstab": f"{fstab}\n"}, config=SMALL))
    assert (found.level, found.what.split(" after")[0]) == (level, then)
    assert (level == "ok") or found.fix.startswith("in /etc/fstab: tmpfs /dev/shm tmpfs size=")


def test_shm_of_a_container_goes_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = a_host(tmp_path, {".dockerenv": ""})
    assert memory.shm_after_restart(host).level == "ok"
    size = os.statvfs(SHM_DIR)
    monkeypatch.setattr(memory, "DOCKER_SHM_BYTES", size.f_blocks * size.f_frsize)
    found = memory.shm_after_restart(host)
    assert (found.level, "nobody has said a size" in found.what) == ("warning", True)


@pytest.mark.parametrize(("limit_mib", "level"), [(4096, "ok"), (400, "warning"), (100, "problem")])
def test_what_a_cgroup_leaves(tmp_path: Path, limit_mib: int, level: str) -> None:
    files = {
        "proc/self/cgroup": "0::/us\n",
        "sys/fs/cgroup/us/memory.max": f"{limit_mib << 20}\n",
        "sys/fs/cgroup/us/memory.current": f"{90 << 20}\n",
        "sys/fs/cgroup/us/memory.stat": "inactive_file 0\n",
    }
    found = memory.memory_limit(a_host(tmp_path, files, config=SMALL))
    assert (found.level, found.what.split(" left")[0]) == (
        level,
        f"{(limit_mib - 90) / 1024:.1f} GiB" if limit_mib > 1024 else f"{limit_mib - 90} MiB",
    )
    (tmp_path / "proc/meminfo").write_text("")
    (tmp_path / "proc/self/cgroup").write_text("")
    assert memory.memory_limit(a_host(tmp_path, {"proc/meminfo": "", "proc/self/cgroup": ""})).level == "warning"


def test_what_the_dead_have_left(tmp_path: Path) -> None:
    with Process() as writer:
        msgspec.convert(writer.ask("create", 1 << 16), RingAnnouncement)
        assert memory.stale_segments(a_host(tmp_path)).level == "ok"
        writer.kill()
        found = memory.stale_segments(a_host(tmp_path))
    assert (found.level, found.fix) == ("warning", "mmcached shm gc")
    sweep()
    assert memory.stale_segments(a_host(tmp_path)).level == "ok"


def test_what_a_service_that_crashed_has_left(tmp_path: Path) -> None:
    leave_ring(tmp_path)
    host = a_host(tmp_path / "other")
    found = memory.stale_segments(host)
    assert (found.level, f"the first of {tmp_path}" in found.what) == ("warning", True)
    assert found.fix == f"mmcached serve --run-dir {tmp_path} adopts its own; mmcached shm gc --all removes all"
    assert memory.stale_segments(a_host(tmp_path / "other", run_dir=tmp_path)).level == "ok", "its next start"
    remove_notes(tmp_path)
    assert memory.stale_segments(host).fix == "mmcached shm gc"
    sweep()
