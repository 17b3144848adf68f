"""Measures puts of clients.

put            `Client.put` of a new key, until the answer: from then on every client can read it
socket         the same, by a service without nurseries
memcpy         one copy of that many bytes between two arrays, again and again the same: the fastest of some
cold memcpy    one copy into resident memory that was not touched recently, as the room for a new record is; the median
raw Redis      SET by a socket and nothing else
puts/s         of 4 clients together, beside 1
frontend cpu   processor time of the frontend for each put, of records of 64 MiB beside 1 MiB
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count, cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmcached.cli.bench.processes import answer
from mmcached.cli.bench.redis import RawRedis
from mmcached.client import Client
from scripts.bench.harness import Bound, Row, row, wall_us
from scripts.bench.sidecar_processes import (
    NUM_BYTES,
    PUT,
    RAW,
    ask,
    children,
    forget_others,
    frontend,
    memcpy_us,
    redis_kinds,
)

Bytes = npt.NDArray[np.uint8]

SOCKET, COLD = "socket", "cold memcpy"
SIZES = {
    "4 KiB": 4096,
    "64 KiB": 64 << 10,
    "256 KiB": 256 << 10,
    "1 MiB": 1 << 20,
    "4.7 MiB": NUM_BYTES,
    "16 MiB": 16 << 20,
    "64 MiB": 64 << 20,
}
STORE_GB = 1.25
"""A quarter of it is for nurseries, and a record of 64 MiB is less than a quarter of that."""
PUTS_PER_ROUND = 30
PUT_BYTES_PER_ROUND = 1 << 30
COLD_BYTES = 256 << 20
"""Many times what a processor's caches hold: when a copy comes round again, its target is cold."""
CPU_BYTES = 4 << 30
NUM_CLIENTS = 4
BOUNDS = [
    Bound("reach", "put, p50", "4.7 MiB", "memcpy", 3.0),
    *(Bound("reach", "put, p50", size, COLD, ratio) for size, ratio in (("4.7 MiB", 1.5), ("64 MiB", 1.25))),
    Bound("try", "put, p50", "4.7 MiB", COLD, 1.3),
    Bound("reach", "put, p50", "4 KiB", RAW, 2.0),
    Bound("try", "put, p50", "4 KiB", RAW, 1.0),
    Bound("reach", "puts", f"4.7 MiB, {NUM_CLIENTS} clients", "1 client", 1.8, is_floor=True),
    Bound("reach", "frontend's cpu of a put", "64 MiB", "1 MiB", 1.1),
]


def compare_puts(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure puts of one client; of each size some of each kind in turns, none of them among the first."""
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder, ExitStack() as stack:
        run_dirs = {"ring": Path(folder) / "ring", SOCKET: Path(folder) / "socket"}
        stack.enter_context(frontend(run_dirs["ring"], store_gb=STORE_GB))
        stack.enter_context(frontend(run_dirs[SOCKET], store_gb=STORE_GB, store_nursery_share=0.0))
        writers = {kind: stack.enter_context(Client(each, fail_open=False)) for kind, each in run_dirs.items()}
        reader = stack.enter_context(Client(run_dirs["ring"], fail_open=False))
        targets = np.ones(COLD_BYTES, np.uint8)
        numbers = count()
        rows = []
        for size, num_bytes in SIZES.items():
            payload = np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)
            puts: dict[str, Callable[[str], object]] = {
                kind: partial(_put, writer, payload) for kind, writer in writers.items()
            }
            puts[COLD] = partial(_copy, payload, cycle(_extents(targets, num_bytes)))
            if RAW in redis_kinds():
                redis = stack.enter_context(contextlib.closing(RawRedis(str(run_dir / "redis"), num_bytes)))
                puts[RAW] = partial(redis.set, value=payload.data)
            num_puts = max(4, min(PUTS_PER_ROUND, PUT_BYTES_PER_ROUND // num_bytes))
            times: dict[str, list[float]] = {kind: [] for kind in puts}
            for _ in range(num_rounds):
                for kind, put in puts.items():
                    # Redis keeps all that it is given; the store, whose room is bounded, gets a new key each time.
                    keys = [size if kind == RAW else f"{size} {next(numbers)}" for _ in range(num_puts)]
                    times[kind] += [wall_us(partial(put, key)) for key in keys][num_puts // 3 :]
                    if kind == "ring" and reader.get(keys[-1], view=True) is None:
                        raise SystemExit("another client cannot read what was put")
            found = {kind: statistics.median(each) for kind, each in times.items()}
            ours = found.pop("ring")
            for peer, peer_us in ({"memcpy": memcpy_us(num_bytes)} | found).items():
                rows.append(row("put, p50", size, ours, "us", peer=peer, peer_value=peer_us))
    return rows + _compare_rates(run_dir, num_rounds)


def compare_frontend_cpu(num_rounds: int) -> list[Row]:
    """Measure what the frontend's process computes for each put, by size."""
    sizes = ("1 MiB", "64 MiB")
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder, ExitStack() as stack:
        pid = stack.enter_context(frontend(Path(folder), store_gb=STORE_GB))
        client = stack.enter_context(Client(Path(folder), fail_open=False, timeout_s=60))
        numbers = count()
        cpu_us: dict[str, list[float]] = {size: [] for size in sizes}
        for _ in range(num_rounds):
            for size in sizes:
                payload = np.ones(SIZES[size], np.uint8)
                num_puts = max(1, CPU_BYTES // SIZES[size] // num_rounds // 2)
                began = _cpu_s(pid)
                for _ in range(num_puts):
                    _put(client, payload, f"{next(numbers)}")
                cpu_us[size].append(1e6 * (_cpu_s(pid) - began) / num_puts)
    small, large = (statistics.median(cpu_us[size]) for size in sizes)
    return [row("frontend's cpu of a put", sizes[1], large, "us", peer=sizes[0], peer_value=small)]


def _compare_rates(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure puts of several clients at a time, and of one."""
    rates: dict[int, list[float]] = {}
    with ExitStack() as stack:
        forget_others(stack.enter_context(Client(run_dir, fail_open=False)))
        processes = stack.enter_context(children(run_dir, NUM_CLIENTS))
        for _ in range(num_rounds):
            for number in (1, NUM_CLIENTS):
                for process in processes[:number]:
                    ask(process, PUT)
                found = [answer(process) for process in processes[:number]]
                rates.setdefault(number, []).append(sum(1e6 * len(times) / sum(times) for times in found))
    one, several = (statistics.median(rates[number]) for number in (1, NUM_CLIENTS))
    return [row("puts", f"4.7 MiB, {NUM_CLIENTS} clients", several, "1/s", peer="1 client", peer_value=one)]


def _put(client: Client, payload: Bytes, key: str) -> None:
    if not client.put(key, {"x": payload}):
        raise SystemExit("a put was refused; the store is too small")


def _copy(payload: Bytes, targets: Iterator[Bytes], _key: str) -> None:
    np.copyto(next(targets), payload)


def _extents(memory: Bytes, num_bytes: int) -> list[Bytes]:
    """Return parts of the memory, none of which overlaps another."""
    return [memory[begin : begin + num_bytes] for begin in range(0, len(memory) - num_bytes + 1, num_bytes)]


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
