"""What the tests with real processes share: small configurations, who is whose child, and waiting with a deadline."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.stats import ServiceStats

T = TypeVar("T")

DEADLINE_S = 120.0
POLL_S = 0.02


NUM_ROLE_CLIENTS = 3
"""An engine and its ranks, two by default, talk to the store as clients, once they have something to load or save."""


def small_config(**changes: object) -> ServiceConfig:
    """A service that starts quickly: a 16 MiB ring, a store as large, two workers, a small pool.

    After each step its engine compares books and workers, and ends with an error if they differ.
    """
    settings: dict[str, object] = {
        "mm_processor_cache_gb": 1 / 64,
        "mm_shm_cache_max_object_size_mb": 8,
        "store_gb": 1 / 64,
        "mm_shm_inline_max_kb": 0,
        "device": "cpu",
        "start_timeout_s": 90.0,
        "http_port": 0,
        "debug_check_workers": True,
        "limits": LimitsConfig(min_shared_encode_ms=0),  # the reference encoder takes no time
    }
    return ServiceConfig(**(settings | changes))  # type: ignore[arg-type]


def eventually(question: Callable[[], T], wanted: Callable[[T], bool], what: str) -> T:
    """Ask until the answer is as wanted; fail with the last answer after the deadline."""
    give_up = time.monotonic() + DEADLINE_S
    while True:
        answer = question()
        if wanted(answer):
            return answer
        if time.monotonic() > give_up:
            raise AssertionError(f"{what}: still {answer!r} after {DEADLINE_S} s")
        # Not synchronisation, only politeness: the loop ends by the answer, or fails by the deadline.
        os.sched_yield()
        time.sleep(POLL_S)


def retryably(call: Callable[[], T]) -> T | None:
    """Call once; return None for an error that may be tried again. Any other is raised."""
    try:
        return call()
    except MmcachedError as error:
        if not error.retryable:
            raise
        return None


def descendants(pid: int) -> list[int]:
    """Return the process ids of all living children, and theirs; of a process that ends meanwhile, what is known."""
    found = []
    try:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                found += [int(child), *descendants(int(child))]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def role_pids(supervisor: int) -> dict[str, list[int]]:
    """Return the living processes of a service by role: "frontend", "engine", "worker" (by engine, in rank order)."""
    found: dict[str, dict[tuple[str, ...], int]] = {"frontend": {}, "engine": {}, "worker": {}}
    for pid in descendants(supervisor):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        role = words[words.index("mmcached") + 1] if "mmcached" in words else ""
        if role in found:  # a child that is just being made still shows its parent's command
            place = tuple(words[words.index(flag) + 1] for flag in ("--index", "--rank") if flag in words)
            found[role][place] = pid
    return {role: [pids[place] for place in sorted(pids)] for role, pids in found.items()}


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """Stop processes for the time of a block; those that have ended meanwhile are left out at its end."""
    pids = list(pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def segments_of(pids: Iterable[int]) -> set[Path]:
    """Return the shared-memory objects of ours that these processes have mapped, as far as they live."""
    found = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found |= {Path(line.split()[-1]) for line in lines if "/dev/shm/mmc." in line and "(deleted)" not in line}
    return found


def stats_of(run_dir: Path) -> ServiceStats:
    with Client(run_dir) as client:
        return client.stats()


def leases_of(stats: ServiceStats) -> int:
    """Leases that are out, as the ring's writer and as the engines see it, and bytes of items that are pinned."""
    held = sum(engine.leases_held for engine in stats.engines)
    return stats.store.ring.leases + held + stats.items.pinned_bytes
