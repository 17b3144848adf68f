"""Kills the frontend of a full store under a client that reads, and measures until the next one serves.

    kill -9 ──supervisor's wait, Python's start──> adoption ──> a put is kept: misses and puts are served again
    └── a client looks records up without a pause, and checks what it finds ──────────────────────────────────>

The store is a real service, `mmcached serve --workers 0`; adoption is what its log says. The peer is a Redis that is
killed just after it has saved the same records to a file, and started at once: it answers when it has loaded them.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmcached.cli.bench.redis import RawRedis, has_redis_server, redis_server
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.shm.stats.page import StatsPageReader
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError
from mmcached.wire.paths import RunDir
from scripts.bench.harness import Bound, Row, row

NUM_RECORDS, RECORD_BYTES = 4096, 256 << 10
PARAMS = "1 GiB, 4,096 records"
DEADLINE_S = 60.0
PAUSE_S = 0.005
MAX_SERVED_S, MAX_ADOPTION_S = 1.5, 0.3
SERVED, ADOPTION, FAILED, FOUND = "until puts are kept", "adoption", "looks that failed meanwhile", "found afterwards"
REDIS = "Redis from its file"
BOUNDS = [
    Bound("reach", FAILED, PARAMS, "looks", 0.0),
    Bound("reach", SERVED, PARAMS, f"{MAX_SERVED_S} s", 1.0),
    Bound("reach", ADOPTION, PARAMS, f"{MAX_ADOPTION_S} s", 1.0),
    Bound("reach", FOUND, PARAMS, "before", 1.0, is_floor=True),
]


def compare_restarts(num_rounds: int) -> list[Row]:
    """Kill the frontend once a round."""
    served_s, failed, looks, found = [], 0, 0, NUM_RECORDS
    with _service() as (run_dir, log_file), Client(run_dir) as client, Client(run_dir) as putter:
        record = np.random.default_rng(0).integers(0, 256, RECORD_BYTES, np.uint8)
        for number in range(NUM_RECORDS):
            if not client.put(str(number), _stamped(record, number)):
                raise SystemExit("a record was not kept; the store is too small")
        if (before := _num_found(client)) < NUM_RECORDS:
            raise SystemExit(f"{before} of {NUM_RECORDS} records are there; the store is too small")
        for number in range(num_rounds):
            with _Looker(client) as looker:
                os.kill(_frontend_pid(run_dir), signal.SIGKILL)
                served_s.append(_seconds_until_kept(putter, f"after {number}"))
            failed, looks = failed + looker.num_failed, looks + looker.num_looks
            found = min(found, _num_found(client))
        adoptions_s = _logged_adoptions(log_file)
    rows = [
        row(FAILED, PARAMS, failed, "looks", peer="looks", peer_value=looks),
        row(SERVED, PARAMS, statistics.median(served_s), "s", peer=f"{MAX_SERVED_S} s", peer_value=MAX_SERVED_S),
        row(
            ADOPTION, PARAMS, statistics.median(adoptions_s), "s", peer=f"{MAX_ADOPTION_S} s", peer_value=MAX_ADOPTION_S
        ),
        row(FOUND, PARAMS, found, "records", peer="before", peer_value=before),
    ]
    if has_redis_server():
        rows.append(row(SERVED, PARAMS, statistics.median(served_s), "s", peer=REDIS, peer_value=_redis_s(record)))
    return rows


@contextlib.contextmanager
def _service() -> Iterator[tuple[Path, Path]]:
    """Run a store with room for the records; yield its run directory and its log."""
    config = ServiceConfig(
        world_size=0,
        store_gb=1 + 1 / 16,
        store_num_slots=2 * NUM_RECORDS,
        max_restarts=1000,
        log_level="info",
    )
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder:
        run_dir, log_file = Path(folder) / "run", Path(folder) / "log"
        with ChildService(run_dir, config, Path(folder) / "config.json", log_file=log_file):
            yield run_dir, log_file


class _Looker:
    """Looks random records up in a thread of its own, from enter to exit; what is not found whole has failed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.num_looks = self.num_failed = 0

    def __enter__(self) -> _Looker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        rng = random.Random(0)
        while not self._is_over.is_set():
            number = rng.randrange(NUM_RECORDS)
            self.num_looks += 1
            self.num_failed += not _is_found(self._client, number)


def _stamped(record: npt.NDArray[np.uint8], number: int) -> dict[str, npt.NDArray[np.uint8]]:
    record[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
    return {"x": record}


def _is_found(client: Client, number: int) -> bool:
    hit = client.get(str(number), view=True, tensors="numpy")
    if hit is None:
        return False
    with hit:
        return int.from_bytes(hit.record["x"][:8].tobytes(), "little") == number


def _num_found(client: Client) -> int:
    return sum(_is_found(client, number) for number in range(NUM_RECORDS))


def _frontend_pid(run_dir: Path) -> int:
    with StatsPageReader(RunDir(run_dir).stats_page) as reader:
        return next(snapshot.pid for role, snapshot in reader.read().items() if role.kind == "frontend")


def _seconds_until_kept(client: Client, key: str) -> float:
    """Put until a frontend takes it; return the seconds since now."""
    began = time.monotonic()
    while not _is_kept(client, key):
        if time.monotonic() - began > DEADLINE_S:
            raise SystemExit("no frontend came back")
        time.sleep(PAUSE_S)
    return time.monotonic() - began


def _is_kept(client: Client, key: str) -> bool:
    try:
        return bool(client.put(key, {})) and client.drop(key)
    except MmcachedError:
        return False


def _logged_adoptions(log_file: Path) -> list[float]:
    """Return the seconds that each frontend has taken to make a former one's records its own."""
    lines = [json.loads(line) for line in log_file.read_text().splitlines() if line.startswith("{")]
    return [line["took_s"] for line in lines if line["event"] == "records taken over"]


def _redis_s(record: npt.NDArray[np.uint8]) -> float:
    """Return the seconds from a kill of Redis until one that was started at once answers with the records."""
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder:
        path = str(Path(folder) / "redis")
        with redis_server(path), contextlib.closing(RawRedis(path, RECORD_BYTES)) as redis:
            for number in range(NUM_RECORDS):
                redis.set(str(number), _stamped(record, number)["x"].data)
            redis.save()
        began = time.monotonic()
        with redis_server(path), contextlib.closing(RawRedis(path, RECORD_BYTES)) as redis:
            seconds = time.monotonic() - began
            redis.get(str(NUM_RECORDS - 1))
            return seconds
