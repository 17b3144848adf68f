"""Estimates the memory that this process may still allocate before the kernel kills it.

A shared-memory object that exceeds its memory cgroup raises no error: the process is killed while the pages are
allocated. So the limits are read first. The result is only an estimate: other processes allocate too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mmcached.wire.errors import SegmentError

_ENLARGE_SHM = "enlarge /dev/shm (mount -o remount,size=… /dev/shm; docker run --shm-size=…)"
READ_ONLY_SHM = "mount -o remount,rw /dev/shm; in a container --tmpfs /dev/shm, or an emptyDir of medium Memory"
"""The next step if no file can be created in /dev/shm."""
_RAISE_LIMIT = "raise the memory limit (memory.max of the cgroup; docker run --memory=…), free memory"


def require_room(needed: int, *, shm_free_bytes: int, headroom_bytes: int | None) -> None:
    """Refuse an allocation that would not fit, before a byte of it is allocated.

    Args:
        needed: Bytes of both objects of a ring.
        headroom_bytes: As `memory_headroom` returns it.

    Raises:
        SegmentError: /dev/shm or the memory limit is too small; names the sizes and the next step.
    """
    if needed > shm_free_bytes:
        raise no_shm_room(needed, shm_free_bytes)
    if headroom_bytes is not None and needed > headroom_bytes:
        fact = f"this process may take {headroom_bytes >> 20} MiB more memory"
        raise _no_room(needed, headroom_bytes, fact, _RAISE_LIMIT)


def no_shm_room(needed: int, free: int, cause: str = "statvfs") -> SegmentError:
    """Return the error for a full /dev/shm; `cause` names the source of the figure."""
    return _no_room(needed, free, f"/dev/shm has {free >> 20} MiB free ({cause})", _ENLARGE_SHM)


def _no_room(needed: int, free: int, fact: str, remedy: str) -> SegmentError:
    return SegmentError(
        f"the store needs {-(-needed >> 20)} MiB, {fact}: {remedy}, or lower store_gb (or mm_processor_cache_gb)",
        needed_bytes=needed,
        free_bytes=free,
    )


def memory_headroom(root: Path = Path("/")) -> int | None:
    """Return the bytes that are still free under the tightest limit of this process; None if no limit is known.

    Reads its memory cgroup and all parents of it (version 2 and 1), and the host's available memory.

    Args:
        root: The parent directory of `proc` and `sys`.
    """
    free = [*_cgroup_headrooms(root), *_host_headroom(root)]
    return max(0, min(free)) if free else None


def _host_headroom(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) * 1024


def _cgroup_headrooms(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            for folder in _upwards(root / "sys/fs/cgroup", path):
                yield from _headroom(folder, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            for folder in _upwards(root / "sys/fs/cgroup/memory", path):
                yield from _headroom(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """Yield the cgroup and its parents, up to the mount: in a container the cgroup's path may be missing below it."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _headroom(folder: Path, limit_name: str, usage_name: str, reclaimable_name: str) -> Iterator[int]:
    limit = "".join(_lines(folder / limit_name))
    usage = "".join(_lines(folder / usage_name))
    if limit.isdigit() and usage.isdigit():  # "max" is no limit
        cache = [line.split()[1] for line in _lines(folder / "memory.stat") if line.split()[0] == reclaimable_name]
        # The file cache counts as used, but the kernel drops it before it kills a process.
        yield int(limit) - int(usage) + sum(map(int, cache))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
