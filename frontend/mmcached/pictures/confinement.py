"""Sets the limits that the kernel holds a decoder to, whatever a codec does: memory, CPU time, life.

They are set by the process itself, before it sees the first file. Linux only, where they have no other name elsewhere.
"""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

CPU_SIGNAL = signal.SIGPROF
"""Ends a process whose CPU time for one picture is over: nobody handles it."""


def confine(memory_bytes: int) -> None:
    """Limit this process for the rest of its life.

    Where memory ends for all, the kernel is asked to end this process before others. No core files: they would hold
    what clients sent.

    Args:
        memory_bytes: of address space, beyond what there is now.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _address_space_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(OSError):  # no /proc, or none to be written
        Path("/proc/self/oom_score_adj").write_text("1000")


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """End this process if what follows takes more CPU time; the kernel looks, so native code is no shelter."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _address_space_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return 0
