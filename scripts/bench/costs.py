"""Measures what the cost of a record adds to its put: puts with `cost_s` beside puts without, in turns.

frontend   processor time of the frontend's own work for a put of 4 KiB, without messages: two simulated stores, full
message    `Client.put` until the answer: a service for each law, all full, 4 KiB and 256 KiB; its time, and the
           processor time of both processes, which other work on the machine changes less

Costs differ as those of pictures, films and prompts do: log-normal, most within a factor of 3.3; `equal` is one cost.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from mmcached.cli.traces.simulated_store import StoreCache
from mmcached.client import Client
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Section, row, wall_us
from scripts.bench.sidecar_processes import frontend
from scripts.bench.sidecar_puts import cpu_s

FRONTEND, MESSAGE = "frontend", "message"
WITHOUT = "without a cost"
COST_S, SIGMA = 0.1, 1.2
SIMULATED_BYTES, SIMULATED_PUTS = 64 << 20, 250
STORE_GB = 1 / 16
SIZES = {"4 KiB": 4096, "256 KiB": 256 << 10}
PUTS = 50
NUM_ROUNDS, QUICK_ROUNDS = 40, 8
BOUNDS = [
    *(
        Bound("reach", "cpu of client and frontend", f"{size}, {law}", WITHOUT, 1.03)
        for size in SIZES
        for law in ("differ", "equal")
    ),
    *(Bound("try", "frontend's cpu of a put", f"4 KiB, {law}", WITHOUT, 1.03) for law in ("differ", "equal")),
]


def costs(law: str) -> Iterator[float]:
    """Yield costs in seconds without end: `differ`, `equal`, or `none`."""
    rng = np.random.default_rng(0)
    while True:
        drawn = rng.lognormal(np.log(COST_S), SIGMA) if law == "differ" else COST_S
        yield 0.0 if law == "none" else float(drawn)


def compare_frontend(num_rounds: int) -> list[Row]:
    stores = {law: _Puts(StoreCache(SIMULATED_BYTES, 0), costs(law)) for law in ("none", "differ", "equal")}
    for store in stores.values():
        store.put(SIMULATED_BYTES // 4096 * 5 // 4)
    figures = harness.compare(
        {law: partial(store.put, SIMULATED_PUTS) for law, store in stores.items()}, 3 * num_rounds
    )
    return [
        row("frontend's cpu of a put", f"4 KiB, {law}", figures[law], "us", peer=WITHOUT, peer_value=figures["none"])
        for law in ("differ", "equal")
    ]


class _Puts:
    def __init__(self, store: StoreCache, costs_s: Iterator[float]) -> None:
        self._store = store
        self._costs_s = costs_s
        self._numbers = count()

    def put(self, num_puts: int) -> float:
        """Put new records; return the processor time of each in microseconds."""
        new = [(next(self._numbers), next(self._costs_s)) for _ in range(num_puts)]
        began = time.thread_time_ns()
        for number, cost_s in new:
            self._store.request(number, 4096, cost_s)
        return (time.thread_time_ns() - began) / num_puts / 1000


def compare_messages(num_rounds: int) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder, ExitStack() as stack:
        services = dict[str, _Service]()
        for law in ("none", "differ", "equal"):
            pid = stack.enter_context(frontend(Path(folder) / law, store_gb=STORE_GB))
            client = stack.enter_context(Client(Path(folder) / law, fail_open=False, timeout_s=60))
            services[law] = _Service(client, pid, costs(law))
        for size, num_bytes in SIZES.items():
            for each in services.values():
                each.put(int(STORE_GB * (1 << 30)) * 5 // 4 // num_bytes, num_bytes)
                each.walls_us.clear()
            cpu_us = harness.compare(
                {law: partial(each.put, PUTS, num_bytes) for law, each in services.items()}, num_rounds
            )
            wall = {law: statistics.median(each.walls_us) for law, each in services.items()}
            for name, figures in (("cpu of client and frontend", cpu_us), ("put, p50", wall)):
                rows += [
                    row(name, f"{size}, {law}", figures[law], "us", peer=WITHOUT, peer_value=figures["none"])
                    for law in ("differ", "equal")
                ]
    return rows


class _Service:
    def __init__(self, client: Client, pid: int, costs_s: Iterator[float]) -> None:
        self._client = client
        self._pid = pid
        self._costs_s = costs_s
        self._numbers = count()
        self.walls_us: list[float] = []

    def put(self, num_puts: int, num_bytes: int) -> float:
        """Put new records; return the processor time of both processes for each in microseconds."""
        record = {"x": np.ones(num_bytes, np.uint8)}
        began = cpu_s(self._pid) + time.process_time()
        for _ in range(num_puts):
            put = partial(self._client.put, f"{next(self._numbers)}", record, cost_s=next(self._costs_s) or None)
            self.walls_us.append(wall_us(put))
        return 1e6 * (cpu_s(self._pid) + time.process_time() - began) / num_puts


def open_sections(_undo: ExitStack) -> Mapping[str, Section]:
    return {FRONTEND: compare_frontend, MESSAGE: compare_messages}


if __name__ == "__main__":
    harness.main(
        "what the cost of a record adds to its put",
        [FRONTEND, MESSAGE],
        open_sections,
        rounds=(NUM_ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
