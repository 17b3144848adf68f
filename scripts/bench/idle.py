"""Measures what a service at rest costs: CPU, wake-ups and memory of each role, and how long it takes to be ready.

One service with two workers on the CPU, started in a process of its own, and nobody who asks anything. Memory is the
proportional share (PSS) of what is no shared memory, so the rings are left out. The peer is as many bare processes as
there are workers, which import torch and do nothing else: what no worker can be below.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mmcached.cli.serve.child_service import ChildService
from mmcached.wire.config import ServiceConfig
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, row

NUM_WORKERS = 2
SETTLE_S = 5.0
REST_S = 60
QUICK_REST_S = 10
SHARED_MEMORY = ("/dev/shm/", "/memfd:", "/run/shm/")
BARE = "import sys, torch; sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used since it began: CPU seconds, and how often it has waited for something."""

    cpu_s: float
    waits: int


def usage_of(pid: int) -> Usage:
    cpu_ns = waits = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        cpu_ns += int((task / "schedstat").read_text().split()[0])
        status = (task / "status").read_text()
        waits += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return Usage(cpu_ns / 1e9, waits)


def private_mib(pid: int) -> float:
    """Return the PSS of all mappings of a process that are no shared memory, in MiB."""
    kib, is_shared = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_shared = len(words) > 5 and words[5].startswith(SHARED_MEMORY)
        elif words[0] == "Pss:" and not is_shared:
            kib += int(words[1])
    return kib / 1024


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def roles(supervisor: int) -> dict[int, str]:
    """Return the role of each process of a service; the frontend's own have decoded the picture of the start."""
    found = {supervisor: "supervisor"}
    for pid in children(supervisor):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        found[pid] = words[words.index("mmcached") + 1]
        found |= dict.fromkeys(children(pid), "decoder")
    return found


@contextlib.contextmanager
def service() -> Iterator[tuple[Mapping[int, str], float]]:
    """Yield the roles of a service by process, and the seconds from its start until it was ready."""
    with tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch:
        config = ServiceConfig(world_size=NUM_WORKERS, device="cpu", http_port=0)
        begun = time.monotonic()
        with ChildService(Path(scratch) / "s", config, Path(scratch) / "config.json") as started:
            yield roles(started.process.pid), time.monotonic() - begun


@contextlib.contextmanager
def bare_processes() -> Iterator[tuple[list[int], float]]:
    """Yield processes that have imported torch, side by side, and the seconds it took."""
    begun = time.monotonic()
    command = [sys.executable, "-c", BARE]
    with contextlib.ExitStack() as stack:
        bare = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(NUM_WORKERS)
        ]
        for one in bare:
            if one.stdout is None or one.stdout.read(1) != b".":
                raise RuntimeError("torch cannot be imported")
        yield [one.pid for one in bare], time.monotonic() - begun


@dataclass(slots=True)
class Rest:
    """What the processes of each role have used together: CPU seconds and waits in a while, and memory."""

    cpu_s: float = 0.0
    waits: int = 0
    mib: float = 0.0


def rest_of(processes: Mapping[int, str], rest_s: float) -> dict[str, Rest]:
    time.sleep(SETTLE_S)
    before = {pid: usage_of(pid) for pid in processes}
    time.sleep(rest_s)
    found = {role: Rest() for role in processes.values()}
    for pid, role in processes.items():
        now, used = usage_of(pid), found[role]
        used.cpu_s += now.cpu_s - before[pid].cpu_s
        used.waits += now.waits - before[pid].waits
        used.mib += private_mib(pid)
    return found


def at_rest(rest_s: int) -> list[Row]:
    with bare_processes() as (bare, bare_s):
        bare_mib = sum(private_mib(pid) for pid in bare)
        bare_cpu_s = sum(usage_of(pid).cpu_s for pid in bare)
    with service() as (processes, ready_s):
        start_cpu_s = sum(usage_of(pid).cpu_s for pid in processes)
        of_role = rest_of(processes, rest_s)
    used = of_role.values()
    of_role = {"all": Rest(sum(u.cpu_s for u in used), sum(u.waits for u in used), sum(u.mib for u in used))} | of_role
    torch = f"{NUM_WORKERS} processes with torch"
    rows = [
        row("start until ready", "all", ready_s, "s", peer=torch, peer_value=bare_s),
        row("CPU of a start", "all", start_cpu_s, "s", peer=torch, peer_value=bare_cpu_s),
    ]
    for role, u in of_role.items():
        rows += [
            row("memory beside rings", role, u.mib, "MiB", peer=torch, peer_value=bare_mib),
            row("processor at rest", role, 100 * u.cpu_s / rest_s, "%", peer="one core", peer_value=100),
            row("wake-ups at rest", role, u.waits / rest_s, "1/s", peer="once a second", peer_value=1),
        ]
    return rows


BOUNDS = [
    Bound("reach", "processor at rest", "all", "one core", 0.005),
    Bound("reach", "wake-ups at rest", "all", "once a second", 6),
]


if __name__ == "__main__":
    rests = (REST_S, QUICK_REST_S)
    harness.main("a service at rest", ["rest"], lambda undo: {"rest": at_rest}, rounds=rests, bounds=BOUNDS)
