"""Checks before a start, which refuse it if no service could work; only checks that take no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mmcached.cli.doctor import kernel, memory, resources
from mmcached.cli.doctor.finding import CheckedHost, Finding
from mmcached.wire.errors import MmcachedError, SegmentError, ServiceUnavailable

START_CHECKS: Mapping[str, tuple[Callable[[CheckedHost], Finding], type[MmcachedError]]] = {
    "/dev/shm": (memory.shm_size, SegmentError),
    "kernel locks": (kernel.kernel_locks, SegmentError),
    "atomic words": (kernel.atomic_words, SegmentError),
    "open files": (resources.open_files, ServiceUnavailable),
}
"""By name: the check, and the error for a problem that it finds. Run directory and settings raise errors themselves."""


def require_startable(host: CheckedHost) -> None:
    """Raise an error for the first problem, with the text of `doctor`.

    Raises:
        SegmentError: Rings cannot be made in /dev/shm, or not used by several processes.
        ServiceUnavailable: The frontend would have no descriptor for clients.
    """
    for name, (check, kind) in START_CHECKS.items():
        try:
            found = check(host)
        except OSError as error:
            raise kind(f"{name}: {error}") from error
        if found.level == "problem":
            what = found.what if found.what.startswith(name) else f"{name}: {found.what}"
            raise kind(f"{what}; fix: {found.fix}")
