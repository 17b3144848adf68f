"""Measures the sidecar beside Redis: a record of 4.7 MiB in the hands of 1, 4 and 16 client processes.

view       `Client.get(key, view=True)`: the tensor lies in shared memory, and is read in place
owned      `Client.get(key)`: the client's own, writable copy
redis-py   GET over a unix socket; the array refers to the bytes that came, no further copy is charged
raw Redis  GET by a socket and nothing else, into one buffer that is used again and again: what Redis can do at best
memcpy     one copy of that many bytes between two populated arrays, in this process

crowd      hits, as views, of one client beside 8 that put and miss without a pause
empty loop the same crowd, in turns with the hits: a loop that takes as long as a hit and shares nothing with anybody,
           so what is slow in it is the machine's: more processes than cores

puts, put cpu   see `sidecar_puts`
looks, cold, stores   see `sidecar_looks`
restart         the frontend is killed: see `sidecar_restart`
native, module  the reader in C, and the client with it: see `sidecar_native`

Every kind takes its turn in each of several rounds, in the same client processes, so that all meet the same machine.
Times are of single hits, over all clients and rounds; rates are hits per second of all clients together, the median of
the rounds. Without redis-server or redis-py the rows are left out, and a line says so.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from mmcached.cli.bench.processes import answer
from mmcached.client import Client
from scripts.bench import harness, sidecar_looks, sidecar_native, sidecar_puts, sidecar_restart
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
    memcpy_us,
    read_through,
    redis_kinds,
    service,
)

CLIENTS = {f"{number} client{'s' * (number > 1)}": number for number in (1, 4, 16)}
NUM_ROUNDS = 5
QUICK_ROUNDS = 2
PUTS, PUT_CPU, LOOKS, COLD, STORES = "puts", "put cpu", "looks", "cold", "stores"
RESTART, NATIVE, MODULE = "restart", "native", "module"
NUM_LOOPS = 2000
CROWD_SIZE = 8
BOUNDS = [
    Bound("reach", f"hits, {kind}", params, peer, rate, is_floor=True)
    for kind, rate in (("view", 60.0), ("owned", 3.0))
    for params in CLIENTS
    for peer in (RAW, REDIS_PY)
] + [
    Bound("reach", "hit, view, p50", "1 client", RAW, 0.015),
    Bound("reach", "hit, owned, p50", "1 client", "memcpy", 1.4),
    Bound("reach", "hit, p99", f"beside {CROWD_SIZE} that put and miss", "its p50", 5.0),
    Bound("try", "hit, p99", f"beside {CROWD_SIZE} that put and miss", "empty loop, p99", 1.5),
    *sidecar_looks.BOUNDS,
    *sidecar_puts.BOUNDS,
    *sidecar_restart.BOUNDS,
    *sidecar_native.BOUNDS,
]
"""How many times Redis' rate each kind of hit shall reach, and so on."""


def compare(run_dir: Path, params: str, num_rounds: int) -> list[Row]:
    """Measure all kinds with so many client processes."""
    redis = redis_kinds()
    kinds = ["view", "owned", *redis]
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    copies: list[float] = []
    with children(run_dir, CLIENTS[params]) as processes:
        for _ in range(num_rounds):
            copies.append(memcpy_us(NUM_BYTES))
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


def open_sections(undo: ExitStack) -> Mapping[str, Section]:
    run_dir = undo.enter_context(service())
    hits = {params: partial(compare, run_dir, params) for params in CLIENTS}
    return hits | {
        PUTS: partial(sidecar_puts.compare_puts, run_dir),
        PUT_CPU: sidecar_puts.compare_frontend_cpu,
        LOOKS: partial(sidecar_looks.compare_looks, run_dir),
        COLD: partial(sidecar_looks.compare_cold, run_dir),
        STORES: partial(sidecar_looks.compare_stores, run_dir),
        CROWD: partial(compare_in_crowd, run_dir),
        RESTART: sidecar_restart.compare_restarts,
        NATIVE: partial(sidecar_native.compare_native, run_dir),
        MODULE: partial(sidecar_native.compare_module, run_dir),
    }


if __name__ == "__main__":
    harness.main(
        "the sidecar beside Redis: a hit of 4.7 MiB, and puts",
        [*CLIENTS, PUTS, PUT_CPU, LOOKS, COLD, STORES, CROWD, RESTART, NATIVE, MODULE],
        open_sections,
        rounds=(NUM_ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
