"""Starts the processes that `sidecar` measures: a frontend, Redis, and clients that hit as they are told.

A client process reads `[kind, seconds]` per line, and answers with the microseconds of each hit.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np

from mmcached.cli.bench.processes import READY, Process, measuring, tell
from mmcached.cli.bench.redis import RawRedis, has_redis_server, redis_server
from mmcached.cli.serve.roles import PAST_CACHES
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.paths import RunDir
from mmcached.wire.process.death import environment_for_children
from scripts.bench import peers
from scripts.bench.harness import tell_once, wall_us

NUM_BYTES = 4_928_307  # 4.7 MiB
ROUND_S = 0.4
MIN_HITS = 3
KEY = "item"
CROWD, PUT, COPY = "crowd", "put", "copy"
COLD_BYTES = 256 << 20
"""Many times what a processor's caches hold: when a copy comes round again, its target is cold."""
RAW, REDIS_PY = "raw Redis", "redis-py"

Hit = Callable[[], Any]


@contextlib.contextmanager
def service(*, store_gb: float = 0.25) -> Iterator[Path]:
    """Run a frontend, and Redis if it is there, both with the record; yield the run directory."""
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder, ExitStack() as stack:
        run_dir = Path(folder)
        stack.enter_context(frontend(run_dir, store_gb=store_gb))
        record = np.random.default_rng(0).integers(0, 256, NUM_BYTES, np.uint8)
        with Client(run_dir, fail_open=False) as client:
            client.put(KEY, {"x": record})
        if redis_kinds():
            stack.enter_context(redis_server(str(run_dir / "redis")))
            with contextlib.closing(RawRedis(str(run_dir / "redis"), NUM_BYTES)) as redis:
                redis.set(KEY, record.data)
        for left_out in sorted({RAW, REDIS_PY} - set(redis_kinds())):
            tell_once(f"rows are left out: {left_out}: redis-server or the Python package redis is missing")
        yield run_dir


@contextlib.contextmanager
def frontend(run_dir: Path, *, store_gb: float = 0.25, store_nursery_share: float = 0.25) -> Iterator[int]:
    """Run a frontend without engines: the store needs none. Yield its process id."""
    directory = RunDir(run_dir)
    directory.create()
    config = ServiceConfig(
        store_gb=store_gb, store_nursery_share=store_nursery_share, mm_processor_cache_gb=1 / 64, log_level="warning"
    )
    config.save(directory.config)
    command = [sys.executable, "-m", "mmcached", "frontend", "--run-dir", str(run_dir)]
    process = subprocess.Popen(command, env=PAST_CACHES | environment_for_children(), stdout=sys.stderr)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def children(run_dir: Path, count: int) -> AbstractContextManager[list[Process]]:
    return measuring(__name__, [str(run_dir)], count)


def forget_others(client: Client) -> None:
    """Forget what sections have put, which would drive newcomers out, but for the record that all hit."""
    client.flush()
    client.put(KEY, {"x": np.zeros(NUM_BYTES, np.uint8)})


def ask(process: Process, kind: str) -> None:
    tell(process, kind, ROUND_S)


def redis_kinds() -> list[str]:
    """Return the kinds of Redis that can be measured here."""
    if not has_redis_server():
        return []
    return [RAW, *([REDIS_PY] if peers.has_redis_client() else [])]


def hit_as_told(run_dir: Path) -> None:
    copies = _cold_copies(np.zeros(NUM_BYTES, np.uint8))
    with Client(run_dir, fail_open=False) as client:
        kinds: dict[str, Hit] = {
            "view": lambda: read_through(client, view=True),
            "owned": lambda: read_through(client, view=False),
            CROWD: partial(_put_and_miss, client, count(), np.zeros(64 << 10, np.uint8)),
            PUT: partial(_put_new, client, count(), np.zeros(NUM_BYTES, np.uint8)),
        }
        if RAW in redis_kinds():
            kinds[RAW] = partial(RawRedis(str(run_dir / "redis"), NUM_BYTES).get, KEY)
        if REDIS_PY in redis_kinds():
            redis = peers.connect_redis(str(run_dir / "redis"))
            kinds[REDIS_PY] = lambda: np.frombuffer(redis.get(KEY), np.uint8)[-1]
        for hit in kinds.values():
            hit()  # connects, maps, faults
        kinds[COPY] = lambda: next(copies)
        print(READY, end="", flush=True)
        for line in sys.stdin:
            kind, seconds = json.loads(line)
            print(json.dumps(_times_us(kinds[kind], seconds)), flush=True)


def read_through(client: Client, *, view: bool, key: str = KEY) -> Any:
    hit = client.get(key, view=view, tensors="numpy")
    if hit is None:
        raise SystemExit("the record is gone; the store is too small")
    with hit:
        return hit.record["x"][-1]


def _put_and_miss(client: Client, numbers: Iterator[int], payload: Any) -> None:
    key = f"{id(client)} {next(numbers)}"
    client.put(key, {"x": payload})
    client.get(f"not {key}")


def _cold_copies(payload: Any) -> Iterator[None]:
    """Copy the payload into resident memory that was not touched recently, once for each step."""
    num_copies = COLD_BYTES // len(payload)
    targets = np.ones(num_copies * len(payload), np.uint8)  # made by the first step, in clients that are told to copy
    for number in cycle(range(num_copies)):
        np.copyto(targets[number * len(payload) : (number + 1) * len(payload)], payload)
        yield


def _put_new(client: Client, numbers: Iterator[int], payload: Any) -> None:
    if not client.put(f"{id(client)} {os.getpid()} {next(numbers)}", {"x": payload}):
        raise SystemExit("a put was refused; the store is too small")


def memcpy_us(num_bytes: int) -> float:
    """Return the fastest of some copies between two arrays, which stay in the processor's caches if they fit."""
    source = np.ones(num_bytes, np.uint8)
    target = np.zeros(num_bytes, np.uint8)
    return min(wall_us(partial(np.copyto, target, source)) for _ in range(20))


def _times_us(hit: Hit, seconds: float) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < MIN_HITS or time.perf_counter() < until:
        times.append(wall_us(hit))
    return times


if __name__ == "__main__":
    hit_as_told(Path(sys.argv[1]))
