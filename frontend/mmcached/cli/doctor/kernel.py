"""Checks of kernel features, by using them: locks, atomic words, confinement; and of page and clock settings."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from pathlib import Path

from mmcached.cli.doctor.finding import CheckedHost, Finding
from mmcached.shm.files import locks
from mmcached.shm.segment.words import WORD_STORE_NAME, require_word_store
from mmcached.wire.errors import SegmentError

_LANDLOCK_CREATE_RULESET = 444
_SLOW_CLOCKS = frozenset({"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"})
_LARGE_RING_GB = 4.0


def kernel_locks(host: CheckedHost) -> Finding:
    """Check that locks of open file descriptions exclude each other: they prove which processes live."""
    places = [host.shm, _nearest(host.run_dir)]
    for place in places:
        try:
            with tempfile.NamedTemporaryFile(prefix=".mmc-doctor-", dir=place) as file:
                fault = _fault_of_locks(file.fileno(), file.name)
        except OSError as error:
            fix = f"make {place} writable (mount -o remount,rw, chmod), or give another --run-dir"
            return Finding("problem", f"in {place} no file can be made: {error.strerror or error}", fix)
        if fault:
            fix = "put the run directory and /dev/shm on a local file system of Linux (tmpfs, ext4, xfs, overlay)"
            return Finding("problem", f"in {place} locks do not work: {fault}", fix)
    return Finding("ok", f"locks of open file descriptions work in {' and '.join(map(str, places))}")


def atomic_words(host: CheckedHost) -> Finding:
    """Check that readers and the writer can exchange words with release stores and fences."""
    try:
        require_word_store()
    except SegmentError as error:
        return Finding("problem", str(error), "apt install libatomic1 (or the like), or use x86-64 or aarch64")
    return Finding("ok", f"{WORD_STORE_NAME} on {os.uname().machine}")


def huge_pages(host: CheckedHost) -> Finding:
    """Check the setting for huge pages, in which large rings are touched faster."""
    found = re.search(r"\[(\w+)\]", host.read("sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    chosen = found[1] if found else "not offered by this kernel"
    fact = f"shmem_enabled: {chosen}"
    is_large = host.config.store_gb + host.config.mm_processor_cache_gb >= _LARGE_RING_GB
    if chosen in ("never", "deny") and is_large:
        fix = "echo within_size > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
        return Finding("warning", f"{fact}: rings of {_LARGE_RING_GB:.0f} GiB and more are slower to touch", fix)
    return Finding("ok", fact)


def confinement(host: CheckedHost) -> Finding:
    """Check how far decoders can be confined beyond their rlimits."""
    status = host.read("proc/self/status")
    seccomp = {"0": "off", "1": "strict", "2": "filtered"}.get(_field(status, "Seccomp"), "not built in")
    version = _landlock_version()
    landlock = f"landlock {version}" if version else "no landlock"
    userns = host.read("proc/sys/user/max_user_namespaces") or "0"
    fact = f"seccomp of this process: {seccomp}; {landlock}; user namespaces: {'yes' if userns != '0' else 'no'}"
    if seccomp == "strict":
        return Finding("problem", f"{fact}: no process can be started", "start the service outside of that sandbox")
    if seccomp == "not built in":
        return Finding("warning", f"{fact}: decoders are held by rlimits alone", "a kernel with CONFIG_SECCOMP_FILTER")
    return Finding("ok", fact)


def clock(host: CheckedHost) -> Finding:
    """Check the clock source, which is read several times per request; a slow one needs a system call each time."""
    source = host.read("sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in _SLOW_CLOCKS:
        fix = "boot with clocksource=tsc (on a virtual machine: kvm-clock, hyperv_clocksource)"
        return Finding("warning", f"clock source {source}: each look at the clock is slow", fix)
    return Finding("ok", f"clock source {source or 'unknown'}")


def _fault_of_locks(fd: int, name: str) -> str:
    other = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    try:
        if not locks.try_exclusive(fd, 0):
            return "a free byte cannot be locked"
        if locks.is_free(other, 0) or locks.try_exclusive(other, 0):
            return "a byte is locked twice"
        locks.unlock_all(fd)
        return "" if locks.try_exclusive(other, 0) else "a byte that was let go of stays locked"
    finally:
        os.close(other)


def _nearest(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.is_dir())


def _field(status: str, name: str) -> str:
    found = re.search(rf"^{name}:\s*(\S+)", status, re.MULTILINE)
    return found[1] if found else ""


def _landlock_version() -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, 1)))
