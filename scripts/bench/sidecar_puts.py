"""Measures puts of clients.

put            `Client.put` of a new key, until the answer: from then on every client can read it
socket         the same, by a service without nurseries
first lap      the same, while a nursery is filled for the first time; all other rows begin when the store is full, and
               what is in its nurseries has been replaced
memcpy         one copy of that many bytes between two arrays, again and again the same: the fastest of some
cold memcpy    one copy into resident memory that was not touched recently, as the room for a new record is; the median
raw Redis      SET by a socket and nothing else
puts/s         of 4 clients together, beside 1, each in a service of its own; and beside cold copies of 4 processes
copies/s       cold copies of 4 processes together, beside 1: what the memory of this machine gives at best
frontend cpu   processor time of the frontend for each put, of records of 64 MiB beside 1 MiB; likewise. Before a put of
               1 MiB its client copies the other 63 MiB elsewhere, so that the processor's caches are as cold for both
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count, cycle
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmcached.cli.bench.processes import Process, answer
from mmcached.cli.bench.redis import RawRedis
from mmcached.client import Client
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.messages.parts import MIN_PLACED_BYTES
from scripts.bench.harness import Bound, Row, row, wall_us
from scripts.bench.sidecar_processes import (
    COLD_BYTES,
    COPY,
    NUM_BYTES,
    PUT,
    RAW,
    ask,
    children,
    frontend,
    memcpy_us,
    redis_kinds,
    service,
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
NURSERY_BYTES = ServiceConfig(store_gb=STORE_GB).store_nursery_bytes
FILL_BYTES = int(STORE_GB * GIB) + NURSERY_BYTES
"""Until so much was put pages are touched for the first time, and what leaves a nursery is copied into the main ring,
which has free room."""
CPU_PUTS = 128
"""Of each size, in all rounds."""
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
    """Measure puts of one client: of each size some of each kind in turns, the first ones left out."""
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
            _fill(writers["ring"], payload, numbers)
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
    return [*rows, _first_lap(num_rounds), *_compare_rates(num_rounds)]


def compare_frontend_cpu(num_rounds: int) -> list[Row]:
    """Measure what the frontend's process computes for each put, by size."""
    sizes = ("1 MiB", "64 MiB")
    cpu_us: dict[str, list[float]] = {size: [] for size in sizes}
    with ExitStack() as stack:
        pids, clients = dict[str, int](), dict[str, Client]()
        numbers = count()
        for size in sizes:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
            pids[size] = stack.enter_context(frontend(folder, store_gb=STORE_GB))
            clients[size] = stack.enter_context(Client(folder, fail_open=False, timeout_s=60))
            _fill(clients[size], np.ones(SIZES[size], np.uint8), numbers)
        targets = cycle(np.ones((4, SIZES[sizes[1]]), np.uint8))
        for _ in range(num_rounds):
            for size in sizes:
                payload = np.ones(SIZES[size], np.uint8)
                other = np.ones(SIZES[sizes[1]] - SIZES[size], np.uint8)
                num_puts = CPU_PUTS // num_rounds
                began = cpu_s(pids[size])
                for _ in range(num_puts):
                    np.copyto(next(targets)[: len(other)], other)
                    _put(clients[size], payload, f"{next(numbers)}")
                cpu_us[size].append(1e6 * (cpu_s(pids[size]) - began) / num_puts)
    small, large = (statistics.median(cpu_us[size]) for size in sizes)
    return [row("frontend's cpu of a put", sizes[1], large, "us", peer=sizes[0], peer_value=small)]


def _first_lap(num_rounds: int) -> Row:
    """Measure puts into nurseries that were never filled, each round in a service of its own."""
    payload = np.random.default_rng(0).integers(0, 256, NUM_BYTES, np.uint8)
    copies = cycle(_extents(np.ones(COLD_BYTES, np.uint8), NUM_BYTES))
    puts, copied = list[float](), list[float]()
    for _ in range(num_rounds):
        with (
            tempfile.TemporaryDirectory(prefix="mmc-") as folder,
            frontend(Path(folder), store_gb=STORE_GB),
            Client(Path(folder), fail_open=False, timeout_s=60) as client,
        ):
            for number in range(NURSERY_BYTES // NUM_BYTES):
                puts.append(wall_us(partial(_put, client, payload, f"{number}")))
                copied.append(wall_us(partial(_copy, payload, copies, "")))
    ours, peer_us = statistics.median(puts), statistics.median(copied)
    return row("put, p50, first lap", "4.7 MiB", ours, "us", peer=COLD, peer_value=peer_us)


def _compare_rates(num_rounds: int) -> list[Row]:
    """Measure puts, and cold copies, of several clients at a time and of one."""
    rates: dict[tuple[str, int], list[float]] = {
        (kind, number): [] for number in (1, NUM_CLIENTS) for kind in (PUT, COPY)
    }
    with ExitStack() as stack:
        processes: dict[int, list[Process]] = {}
        for number in (1, NUM_CLIENTS):
            run_dir = stack.enter_context(service(store_gb=STORE_GB))
            processes[number] = stack.enter_context(children(run_dir, number))
            num_bytes = 0
            while num_bytes < FILL_BYTES:
                num_bytes += NUM_BYTES * sum(map(len, _at_once(processes[number], PUT)))
            _at_once(processes[number], COPY)  # makes the memory
        for _ in range(num_rounds):
            for (kind, number), found in rates.items():
                times = _at_once(processes[number], kind)
                found.append(sum(1e6 * len(each) / sum(each) for each in times))
    rate = {key: statistics.median(found) for key, found in rates.items()}
    many, one = f"4.7 MiB, {NUM_CLIENTS} clients", "1 client"
    puts, copies = rate[PUT, NUM_CLIENTS], rate[COPY, NUM_CLIENTS]
    return [
        row("puts", many, puts, "1/s", peer=one, peer_value=rate[PUT, 1]),
        row("puts", many, puts, "1/s", peer="their cold copies", peer_value=copies),
        row("puts", "4.7 MiB, 1 client", rate[PUT, 1], "1/s", peer="its cold copies", peer_value=rate[COPY, 1]),
        row("cold copies", many, copies, "1/s", peer=one, peer_value=rate[COPY, 1]),
    ]


def _at_once(processes: list[Process], kind: str) -> list[list[float]]:
    """Let clients put or copy for a while, all at a time; return the microseconds of each, by client."""
    for process in processes:
        ask(process, kind)
    return [answer(process) for process in processes]


def _fill(client: Client, payload: Bytes, numbers: Iterator[int]) -> None:
    """Put records until the store is full and its nurseries have been filled anew, if records as large lie there."""
    if payload.nbytes >= MIN_PLACED_BYTES:
        for _ in range(FILL_BYTES // payload.nbytes):
            _put(client, payload, f"lap {next(numbers)}")


def _put(client: Client, payload: Bytes, key: str) -> None:
    if not client.put(key, {"x": payload}):
        raise SystemExit("a put was refused; the store is too small")


def _copy(payload: Bytes, targets: Iterator[Bytes], _key: str) -> None:
    np.copyto(next(targets), payload)


def _extents(memory: Bytes, num_bytes: int) -> list[Bytes]:
    """Return parts of the memory, none of which overlaps another."""
    return [memory[begin : begin + num_bytes] for begin in range(0, len(memory) - num_bytes + 1, num_bytes)]


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    return time.clock_gettime(~pid << 3 | 2)  # as `clock_getcpuclockid`, which Python does not have
