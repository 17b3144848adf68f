"""Measures the sidecar beside Redis: a record of 4.7 MiB in the hands of 1, 4 and 16 client processes.

view       `Client.get(key, view=True)`: the tensor lies in shared memory, and is read in place
owned      `Client.get(key)`: the client's own, writable copy
redis-py   GET over a unix socket; the array refers to the bytes that came, no further copy is charged
raw Redis  GET by a socket and nothing else, into one buffer that is used again and again: what Redis can do at best
memcpy     one copy of that many bytes between two populated arrays, in this process

put        `Client.put` of a new key, until the answer: from then on every client can read it
socket     the same, by a service that takes no rings of clients

crowd      hits, as views, of one client beside 8 that put and miss without a pause
empty loop the same crowd, in turns with the hits: a loop that takes as long as a hit and shares nothing with anybody,
           so what is slow in it is the machine's: more processes than cores

looks, stores   see `sidecar_looks`
restart         the frontend is killed: see `sidecar_restart`

Every kind takes its turn in each of several rounds, in the same client processes, so that all meet the same machine.
Times are of single hits, over all clients and rounds; rates are hits per second of all clients together, the median of
the rounds. Without redis-server or redis-py the rows are left out, and a line says so.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from mmcached.cli.bench.processes import answer
from mmcached.client import Client
from scripts.bench import harness, sidecar_looks, sidecar_restart
from scripts.bench.harness import Bound, Row, Section, row, wall_us
from scripts.bench.sidecar_processes import (
    CROWD,
    MIN_HITS,
    NUM_BYTES,
    RAW,
    REDIS_PY,
    ROUND_S,
    Hit,
    ask,
    children,
    forget_others,
    frontend,
    read_through,
    redis_kinds,
    service,
)

CLIENTS = {f"{number} client{'s' * (number > 1)}": number for number in (1, 4, 16)}
NUM_ROUNDS = 5
QUICK_ROUNDS = 2
PUTS, SOCKET, LOOKS, STORES, RESTART = "puts", "socket", "looks", "stores", "restart"
NUM_LOOPS = 2000
CROWD_SIZE = 8
PUT_SIZES = {"4 KiB": 4096, "256 KiB": 256 << 10, "4.7 MiB": NUM_BYTES, "16 MiB": 16 << 20}
PUTS_PER_ROUND = 30
BOUNDS = [
    Bound("reach", f"hits, {kind}", params, peer, rate, is_floor=True)
    for kind, rate in (("view", 60.0), ("owned", 3.0))
    for params in CLIENTS
    for peer in (RAW, REDIS_PY)
] + [
    Bound("reach", "hit, view, p50", "1 client", RAW, 0.015),
    Bound("reach", "hit, owned, p50", "1 client", "memcpy", 1.4),
    Bound("reach", "put, p50", "4.7 MiB", "memcpy", 3.0),
    Bound("reach", "hit, p99", f"beside {CROWD_SIZE} that put and miss", "its p50", 5.0),
    Bound("try", "hit, p99", f"beside {CROWD_SIZE} that put and miss", "empty loop, p99", 1.5),
    *sidecar_looks.BOUNDS,
    *sidecar_restart.BOUNDS,
]
"""How many times Redis' rate each kind of hit shall reach, how many copies' time a put may take, …"""


def compare(run_dir: Path, params: str, num_rounds: int) -> list[Row]:
    """Measure all kinds with so many client processes."""
    redis = redis_kinds()
    kinds = ["view", "owned", *redis]
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    copies: list[float] = []
    with children(run_dir, CLIENTS[params]) as processes:
        for _ in range(num_rounds):
            copies.append(memcpy_us())
            for kind in kinds:
                for process in processes:
                    ask(process, kind)
                found = [answer(process) for process in processes]
                times[kind] += [each for hits in found for each in hits]
                rates[kind].append(sum(1e6 * len(hits) / sum(hits) for hits in found))
    p50 = {kind: statistics.median(times[kind]) for kind in kinds}
    p99 = {kind: statistics.quantiles(times[kind], n=100)[98] for kind in kinds}
    rate = {kind: statistics.median(rates[kind]) for kind in kinds}
    rows = []
    for kind in ("view", "owned"):
        rows.append(row(f"hit, {kind}, p50", params, p50[kind], "us", peer="memcpy", peer_value=min(copies)))
        for peer in redis:
            rows.append(row(f"hit, {kind}, p50", params, p50[kind], "us", peer=peer, peer_value=p50[peer]))
            rows.append(row(f"hit, {kind}, p99", params, p99[kind], "us", peer=peer, peer_value=p99[peer]))
            rows.append(row(f"hits, {kind}", params, rate[kind], "1/s", peer=peer, peer_value=rate[peer]))
        if not redis:
            rows.append(row(f"hits, {kind}", params, rate[kind], "1/s", peer="memcpy", peer_value=1e6 / min(copies)))
    return rows


def compare_puts(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure puts of one client; of each size some to each service in turns, none of them among the first."""
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder, ExitStack() as stack:
        stack.enter_context(frontend(Path(folder), max_egress_rings=0))
        clients = {"ring": run_dir, SOCKET: Path(folder)}
        writers = {kind: stack.enter_context(Client(each, fail_open=False)) for kind, each in clients.items()}
        reader = stack.enter_context(Client(run_dir, fail_open=False))
        numbers = count()
        for size, num_bytes in PUT_SIZES.items():
            record = {"x": np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)}
            for _ in range(num_rounds):
                for kind, writer in writers.items():
                    keys = [f"{size} {next(numbers)}" for _ in range(PUTS_PER_ROUND)]
                    found = [wall_us(partial(writer.put, key, record)) for key in keys]
                    times.setdefault((size, kind), []).extend(found[PUTS_PER_ROUND // 3 :])
                    if kind == "ring" and reader.get(keys[-1], view=True) is None:
                        raise SystemExit("another client cannot read what was put")
    rows = []
    for size, num_bytes in PUT_SIZES.items():
        ring, through_socket = (statistics.median(times[size, kind]) for kind in ("ring", SOCKET))
        rows.append(row("put, p50", size, ring, "us", peer="memcpy", peer_value=memcpy_us(num_bytes)))
        rows.append(row("put, p50", size, ring, "us", peer=SOCKET, peer_value=through_socket))
    return rows


def compare_in_crowd(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure the hits of one client while others put and miss, in turns with an empty loop."""
    hits: list[float] = []
    loops: list[float] = []
    with ExitStack() as stack:
        client = stack.enter_context(Client(run_dir, fail_open=False))
        forget_others(client)
        hit = partial(read_through, client, view=True)
        loop = partial(_count_to, _turns_as_long_as(hit))
        processes = stack.enter_context(children(run_dir, CROWD_SIZE))
        for _ in range(num_rounds):
            for process in processes:
                ask(process, CROWD)
            until = time.perf_counter() + ROUND_S
            while len(loops) < MIN_HITS or time.perf_counter() < until:
                hits.append(wall_us(hit))
                loops.append(wall_us(loop))
            for process in processes:
                answer(process)
    params = f"beside {CROWD_SIZE} that put and miss"
    hit_p99, loop_p99 = (statistics.quantiles(times, n=100)[98] for times in (hits, loops))
    return [
        row("hit, p99", params, hit_p99, "us", peer="its p50", peer_value=statistics.median(hits)),
        row("hit, p99", params, hit_p99, "us", peer="empty loop, p99", peer_value=loop_p99),
        row("empty loop, p99", params, loop_p99, "us", peer="its p50", peer_value=statistics.median(loops)),
    ]


def _turns_as_long_as(hit: Hit) -> int:
    """Return how many turns of an empty loop take as long as a hit."""
    hit_us = min(wall_us(hit) for _ in range(NUM_LOOPS))
    return round(NUM_LOOPS * hit_us / min(wall_us(partial(_count_to, NUM_LOOPS)) for _ in range(100)))


def _count_to(num_turns: int) -> None:
    for _ in range(num_turns):
        pass


def memcpy_us(num_bytes: int = NUM_BYTES) -> float:
    """Return the fastest of some copies."""
    source = np.ones(num_bytes, np.uint8)
    target = np.zeros(num_bytes, np.uint8)
    return min(wall_us(partial(np.copyto, target, source)) for _ in range(20))


def open_sections(undo: ExitStack) -> Mapping[str, Section]:
    run_dir = undo.enter_context(service())
    hits = {params: partial(compare, run_dir, params) for params in CLIENTS}
    return hits | {
        PUTS: partial(compare_puts, run_dir),
        LOOKS: partial(sidecar_looks.compare_looks, run_dir),
        STORES: partial(sidecar_looks.compare_stores, run_dir),
        CROWD: partial(compare_in_crowd, run_dir),
        RESTART: sidecar_restart.compare_restarts,
    }


if __name__ == "__main__":
    harness.main(
        "the sidecar beside Redis: a hit of 4.7 MiB, and puts",
        [*CLIENTS, PUTS, LOOKS, STORES, CROWD, RESTART],
        open_sections,
        rounds=(NUM_ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
