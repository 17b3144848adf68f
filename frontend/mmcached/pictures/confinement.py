"""Sets a decoder's limits in the kernel, independent of the codecs: memory, CPU time, life.

The process sets them itself, before it reads the first file. Linux only.
"""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

CPU_SIGNAL = signal.SIGPROF
"""Ends a process that exceeds the CPU time of one image: the signal has no handler."""


def confine(memory_bytes: int) -> None:
    """Limit this process for the rest of its life.

    The kernel's OOM killer is asked to choose this process first. No core files, which would contain clients' data.

    Args:
        memory_bytes: Address space in addition to the current one.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _address_space_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(OSError):  # no /proc, or a read-only one
        Path("/proc/self/oom_score_adj").write_text("1000")


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """End this process if the block exceeds the CPU time; enforced by the kernel, also in native code."""
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
