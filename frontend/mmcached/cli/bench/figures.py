"""The kinds of measured calls, and the measurement of one kind at one size.

A figure covers single calls of all clients, in all rounds. Every size and kind has the same share of the time.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 64 * KIB, 256 * KIB, MIB, 4_928_307, 16 * MIB)
"""Bytes; 4.7 MiB is the output of a vision tower for an image of two megapixels."""


class CallKind(StrEnum):
    """A kind of call; its value is the display name."""

    VIEW = "hit, in place"
    """`client.get(key, view=True)`."""
    OWNED = "hit, a copy"
    PUT = "put"
    """`client.put` of a new key until it is answered."""
    COMPUTE = "get_or_compute, new"
    """`client.get_or_compute` of a new key, whose computation takes no time."""
    MEMCPY = "memcpy"
    """One copy of that many bytes within a process."""
    REDIS_GET = "Redis GET"
    """GET over a unix socket into an existing buffer, without decoding."""
    REDIS_SET = "Redis SET"


OF_REDIS = (CallKind.REDIS_GET, CallKind.REDIS_SET)
READS = (CallKind.VIEW, CallKind.OWNED, CallKind.REDIS_GET)
"""Kinds that read one record repeatedly; each call of the others makes a new one."""


@dataclass(frozen=True, slots=True)
class CallFigure:
    """The measured calls of one kind.

    Attributes:
        num_clients: Processes that called at the same time.
        num_bytes: Bytes of the record's tensor.
        num_calls: Calls of all clients and rounds.
        p50_us, p99_us: Percentiles of single calls, in microseconds.
        calls_per_s: Rate of all clients together.
    """

    kind: CallKind
    num_clients: int
    num_bytes: int
    num_calls: int
    p50_us: float
    p99_us: float
    calls_per_s: float


def figure(kind: CallKind, num_bytes: int, times_us: Sequence[Sequence[float]]) -> CallFigure:
    """Summarise the times of calls, by client; each client has made at least one."""
    together = [each for times in times_us for each in times]
    p99 = statistics.quantiles(together, n=100)[98] if len(together) > 1 else together[0]
    rate = sum(1e6 * len(times) / sum(times) for times in times_us)
    return CallFigure(kind, len(times_us), num_bytes, len(together), statistics.median(together), p99, rate)


def find(figures: Iterable[CallFigure], kind: CallKind, num_clients: int, num_bytes: int) -> CallFigure | None:
    wanted = (kind, num_clients, num_bytes)
    return next((each for each in figures if (each.kind, each.num_clients, each.num_bytes) == wanted), None)


def size_text(num_bytes: int) -> str:
    amount, unit = (num_bytes / MIB, "MiB") if num_bytes >= MIB else (num_bytes / KIB, "KiB")
    return f"{amount:.1f}".removesuffix(".0") + f" {unit}"


def time_text(us: float) -> str:
    """Return a time as text, with two or three significant digits: `16 µs`, `1.4 ms`."""
    amount, unit = (us, "µs") if us < 1000 else (us / 1000, "ms") if us < 1e6 else (us / 1e6, "s")
    return f"{amount:.{1 if amount < 10 else 0}f} {unit}"


def this_host() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(named, platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    cores = len(os.sched_getaffinity(0))
    return (
        f"{processor}, {cores} core{'s' * (cores > 1)}, {memory:.0f} GiB, Linux {platform.release()}, "
        f"Python {platform.python_version()}"
    )
