"""The table of all checks in the order of the report, and their run. A new check is a function and a row here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from mmcached.cli.doctor import kernel, memory, names, nurseries, resources, second_level, service
from mmcached.cli.doctor.finding import CheckedHost, Finding
from mmcached.wire.errors import MmcachedError

CHECKS: Mapping[str, Callable[[CheckedHost], Finding]] = {
    "/dev/shm": memory.shm_size,
    "/dev/shm after a restart": memory.shm_after_restart,
    "memory limit": memory.memory_limit,
    "stale segments": memory.stale_segments,
    "locked memory": resources.locked_memory,
    "open files": resources.open_files,
    "cores": resources.cores,
    "kernel locks": kernel.kernel_locks,
    "atomic words": kernel.atomic_words,
    "huge pages": kernel.huge_pages,
    "confinement": kernel.confinement,
    "clock": kernel.clock,
    "torch and CUDA": resources.devices,
    "run directory": service.run_directory,
    "versions": service.versions,
    "nurseries": nurseries.nurseries,
    "round trip": service.round_trip,
    "engine": service.engine,
    "second level": second_level.second_level,
    "names": names.names,
}
"""Checks by name."""


def run_checks(host: CheckedHost, tell: Callable[[str], None] = lambda words: None) -> Iterator[tuple[str, Finding]]:
    """Yield the name and finding of each check; a check that fails with an error becomes a warning."""
    for name, check in CHECKS.items():
        tell(f"checking {name}")
        try:
            yield name, check(host)
        except (MmcachedError, OSError, ValueError) as error:
            yield name, Finding("warning", f"could not be checked: {error}")
