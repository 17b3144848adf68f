"""Each check of the kernel passes here, and fails where the kernel does not do what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.cli.doctor import kernel
from mmcached.cli.doctor.finding import CheckedHost
from mmcached.shm.files import locks
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import SegmentError
from tests.cli.doctor.hosts import a_host


def test_locks_are_really_taken(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = CheckedHost(run_dir / "not" / "there")
    found = kernel.kernel_locks(host)
    assert (found.level, str(run_dir) in found.what) == ("ok", True), found
    assert "no file can be made" in kernel.kernel_locks(CheckedHost(Path("/proc/1"))).what
    monkeypatch.setattr(locks, "try_exclusive", lambda fd, byte: True)
    found = kernel.kernel_locks(host)
    assert (found.level, "locked twice" in found.what) == ("problem", True)
    monkeypatch.setattr(locks, "try_exclusive", lambda fd, byte: False)
    assert "cannot be locked" in kernel.kernel_locks(host).what


def test_words(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel.atomic_words(CheckedHost(run_dir)).level == "ok"

    def none() -> None:
        raise SegmentError("this machine has no release store")

    monkeypatch.setattr(kernel, "require_word_store", none)
    found = kernel.atomic_words(CheckedHost(run_dir))
    assert (found.level, "libatomic" in found.fix) == ("problem", True)


@pytest.mark.parametrize(
    ("chosen", "store_gb", "level"), [("never", 8, "warning"), ("never", 1, "ok"), ("advise", 8, "ok")]
)
def test_huge_pages(tmp_path: Path, chosen: str, store_gb: float, level: str) -> None:
    words = " ".join(f"[{w}]" if w == chosen else w for w in ("always", "within_size", "advise", "never", "deny"))
    files = {"sys/kernel/mm/transparent_hugepage/shmem_enabled": words}
    found = kernel.huge_pages(a_host(tmp_path, files, config=ServiceConfig(store_gb=store_gb)))
    assert (found.level, chosen in found.what) == (level, True)


@pytest.mark.parametrize(
    ("status", "level", "said"),
    [
        ("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n", "ok", "seccomp of this process: filtered"),
        ("Seccomp:\t1\n", "problem", "no process can be started"),
        ("Name:\tx\n", "warning", "not built in"),
    ],
)
def test_confinement(tmp_path: Path, status: str, level: str, said: str) -> None:
    found = kernel.confinement(a_host(tmp_path, {"proc/self/status": status}))
    assert (found.level, said in found.what) == (level, True), found


def test_a_slow_clock(tmp_path: Path) -> None:
    name = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    assert kernel.clock(a_host(tmp_path, {name: "tsc\n"})).level == "ok"
    assert kernel.clock(a_host(tmp_path, {name: "hpet\n"})).level == "warning"
