"""Checks of /dev/shm, and of the memory for rings and processes."""

from __future__ import annotations

import os
import re

from mmcached.cli.admin.shm_list import list_segments
from mmcached.cli.doctor.finding import CheckedHost, Finding, mib
from mmcached.cli.serve.shm_room import noted_bytes, rings_bytes
from mmcached.cli.terminal_text import shown
from mmcached.shm.segment.headroom import READ_ONLY_SHM, memory_headroom

LEAST_SHM_BYTES = 16 << 20
"""With less space even small rings are of no use, unless configured to be that small."""
PROCESSES_BYTES = 512 << 20
"""Memory of supervisor, frontend, engine and two workers, without the rings."""
DOCKER_SHM_BYTES = 64 << 20
"""Default size of /dev/shm in a container."""
_GROW = "mount -o remount,size={size} /dev/shm; in a container --shm-size={size}, or an emptyDir of medium Memory"
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "": 1}


def shm_size(host: CheckedHost) -> Finding:
    """Check that /dev/shm is a writable tmpfs with space for ring and store."""
    if os.statvfs(host.shm).f_flag & os.ST_RDONLY:
        return Finding("problem", f"{host.shm} is read-only: rings cannot be made there", READ_ONLY_SHM)
    if not os.access(host.shm, os.W_OK | os.X_OK):
        fix = f"chmod 1777 {host.shm}"
        return Finding("problem", f"uid {os.geteuid()} may not write to {host.shm}: rings cannot be made there", fix)
    kind = next((fields[2] for fields in _mounts(host) if fields[1] == str(host.shm)), "")
    if kind not in ("tmpfs", ""):
        return Finding("problem", f"{host.shm} is of type {kind}: rings would not lie in memory", grow(host))
    total, free = _room(host)
    needed = rings_bytes(host.config)
    fact = f"{mib(total)}, {mib(free)} of it free for us; ring and store take {mib(needed)}"
    smaller = "sizes that nobody has set are made smaller, others refused"
    if free < min(LEAST_SHM_BYTES, needed):
        return Finding("problem", fact, grow(host))
    if free < needed:
        return Finding("warning", f"{fact}: {smaller}", grow(host))
    if free < 2 * needed:
        return Finding("ok", f"{fact}; a frontend that cannot adopt them waits until the former's are gone", "")
    return Finding("ok", fact)


def shm_after_restart(host: CheckedHost) -> Finding:
    """Check that the size of /dev/shm survives the next boot: a manual remount does not."""
    total, _ = _room(host)
    if _is_container(host):
        fact = f"it is this container's, {mib(total)}, and goes with it"
        if total == DOCKER_SHM_BYTES:
            return Finding("warning", f"{fact}: nobody has said a size", grow(host))
        return Finding("ok", fact)
    size = next((_size_of(fields[3], host) for fields in _fstab(host) if fields[1] == str(host.shm)), None)
    then = _memory_bytes(host) // 2 if size is None else size
    source = "half of the memory, as nothing in /etc/fstab says otherwise" if size is None else "/etc/fstab says so"
    fact = f"{mib(then)} after the next boot: {source}"
    if then < min(total, rings_bytes(host.config)):
        line = f"tmpfs /dev/shm tmpfs size={max(1, total >> 20)}m,mode=1777 0 0"
        return Finding("warning", f"{fact}; now it is {mib(total)}", f"in /etc/fstab: {line}")
    return Finding("ok", fact)


def memory_limit(host: CheckedHost) -> Finding:
    """Check the memory limit: pages of /dev/shm count for the memory cgroup of the process that touches them first."""
    left = memory_headroom(host.root)
    if left is None:
        return Finding("warning", "neither /proc/meminfo nor a cgroup says what is left", "mount /proc")
    held = noted_bytes(host.run_dir)
    needed = 0 if held else rings_bytes(host.config)
    fact = f"{mib(left)} left under the tightest limit (cgroup, or memory of the host)"
    fix = "raise memory.max of the cgroup (docker run --memory, resources.limits.memory), or lower store_gb"
    if left < needed:
        return Finding("problem", f"{fact}; the rings take {mib(needed)}", fix)
    if not held and left < needed + PROCESSES_BYTES:
        return Finding("warning", f"{fact}; rings and processes take about {mib(needed + PROCESSES_BYTES)}", fix)
    return Finding("ok", fact)


def stale_segments(host: CheckedHost) -> Finding:
    """Look for segments left by `kill -9`, which take memory.

    They are removed when any service starts, some only when the service of their run directory does.
    """
    entries = list_segments()
    dead = [entry for entry in entries if entry.state == "dead"]
    if dead:
        size = mib(sum(entry.nbytes for entry in dead))
        return Finding("warning", f"{len(dead)} segments of dead writers, {size} at most", "mmcached shm gc")
    orphaned = [entry for entry in entries if entry.is_orphaned and entry.run_dir != str(host.run_dir.absolute())]
    if orphaned:
        size, home = mib(sum(entry.nbytes for entry in orphaned)), shown(orphaned[0].run_dir)
        fact = f"{len(orphaned)} segments of services that died, {size} at most, the first of {home}"
        fix = f"mmcached serve --run-dir {home} adopts its own; mmcached shm gc --all removes all"
        return Finding("warning", fact, fix)
    return Finding("ok", f"none; {len(entries)} segments are in use, or wait for the next start")


def grow(host: CheckedHost) -> str:
    """Return a command that enlarges /dev/shm to the size that the configuration needs."""
    wanted = -(-max(2 * rings_bytes(host.config), 1 << 30) // (1 << 30))
    return _GROW.format(size=f"{wanted}g")


def _room(host: CheckedHost) -> tuple[int, int]:
    """Return the size of /dev/shm, and its free bytes without the rings of this run directory."""
    found = os.statvfs(host.shm)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize + noted_bytes(host.run_dir)


def _mounts(host: CheckedHost) -> list[list[str]]:
    """Return the fields of each mount, the last first: it covers earlier ones."""
    lines = [line.split() for line in host.read("proc/mounts").splitlines()]
    return [fields for fields in reversed(lines) if len(fields) >= 4]


def _fstab(host: CheckedHost) -> list[list[str]]:
    lines = [line.split() for line in host.read("etc/fstab").splitlines() if not line.lstrip().startswith("#")]
    return [fields for fields in lines if len(fields) >= 4]


def _size_of(options: str, host: CheckedHost) -> int | None:
    found = re.search(r"(?:^|,)size=(\d+)([kmgt%]?)", options, re.IGNORECASE)
    if found is None:
        return None
    number, unit = int(found[1]), found[2].lower()
    return _memory_bytes(host) * number // 100 if unit == "%" else number * _UNITS[unit]


def _memory_bytes(host: CheckedHost) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", host.read("proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _is_container(host: CheckedHost) -> bool:
    marks = ("run/.containerenv", ".dockerenv", "run/secrets/kubernetes.io")
    return any((host.root / mark).exists() for mark in marks) or "container=" in host.read("proc/1/environ")
