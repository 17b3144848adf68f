"""Measures what a second level takes: values and records in Redis at a unix socket, and in Mooncake Store.

value        what lies under one name, as the backend hands it on
record       the same framed, its sum judged; above 32 MiB in parts
redis-py     GET and SET
bare socket  knows beforehand how long the answer is, and reads it into a buffer that it has had all the time

late         a call to a server that does not answer, against its deadline; with 64 threads, the longest of them
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path

from mmcached.cli.bench.redis import RawRedis, has_redis_server, redis_server
from mmcached.second_level.backend import Backend, BackendError
from mmcached.second_level.records import PART_BYTES, Found
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from scripts.bench import harness, second_level_mooncake
from scripts.bench.harness import Bound, Row, Sampler, Section, Unavailable, compare, row, wall_us
from scripts.bench.peers import connect_redis
from scripts.bench.second_level_mooncake import MOONCAKE

RAW, REDIS_PY = "bare socket", "redis-py"
SIZES = {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "4.7 MiB": 4_930_000, "16 MiB": 16 << 20, "64 MiB": 64 << 20}
CALLS = {"64 KiB": 50, "1 MiB": 5}
NAME = "ab" * 32
RECORD = f"mmcached:3:record:{NAME}"
NUM_COPIES = 2
PATIENCE_S = 60.0
LATE_S = 0.05
NUM_LATE = 64
USUAL_ROUNDS, QUICK_ROUNDS = 21, 5

BOUNDS = [
    Bound("reach", "get, value", "4.7 MiB", REDIS_PY, 0.9),
    Bound("reach", "get, record", "4.7 MiB", REDIS_PY, 1.0),
    Bound("reach", "get, record", "4.7 MiB", RAW, 2.0),
    Bound("reach", "put, value", "4.7 MiB", REDIS_PY, 1.2),
    Bound("try", "put, record", "4.7 MiB", REDIS_PY, 1.3),
    Bound("reach", "Mooncake get, record", "4.7 MiB", MOONCAKE, 2.0),
    Bound("reach", "late", "1 thread", "its deadline", 1.1),
    Bound("reach", "late", f"{NUM_LATE} threads", "its deadline", 1.1),
]


def gets(path: str, num_rounds: int) -> list[Row]:
    """Get what lies there, by all in turns."""
    rows = []
    for size, num_bytes in SIZES.items():
        with contextlib.ExitStack() as undo:
            records = undo.enter_context(_records(path))
            python = undo.enter_context(contextlib.closing(connect_redis(path)))
            raw = RawRedis(path, num_bytes)
            undo.callback(raw.close)
            value = os.urandom(num_bytes)
            records.save(NAME, [value], deadline=_deadline())
            python.set("plain", value)
            calls: dict[str, Callable[[], object]] = {
                "get, record": partial(_get_record, records, num_bytes),
                REDIS_PY: partial(python.get, "plain"),
                RAW: partial(raw.get, "plain"),
            }
            if num_bytes <= PART_BYTES:
                backend = undo.enter_context(contextlib.closing(make_backend(f"unix://{path}")))
                calls["get, value"] = partial(_get_value, backend)
            rows += _rows(size, calls, num_rounds)
    return rows


def puts(path: str, num_rounds: int) -> list[Row]:
    """Put a value in the place of the one before, by all in turns; a record differs from the one before."""
    rows = []
    for size, num_bytes in SIZES.items():
        with contextlib.ExitStack() as undo:
            records = undo.enter_context(_records(path))
            python = undo.enter_context(contextlib.closing(connect_redis(path)))
            raw = RawRedis(path, 0)
            undo.callback(raw.close)
            value = os.urandom(num_bytes)
            others = cycle([os.urandom(num_bytes) for _ in range(NUM_COPIES)])
            calls: dict[str, Callable[[], object]] = {
                "put, record": partial(_put_record, records, others),
                REDIS_PY: partial(python.set, "plain", value),
                RAW: partial(raw.set, "plain", memoryview(value)),
            }
            if num_bytes <= PART_BYTES:
                backend = undo.enter_context(contextlib.closing(make_backend(f"unix://{path}")))
                calls["put, value"] = partial(_put_value, backend, value)
            rows += _rows(size, calls, num_rounds)
    return rows


def late(folder: str, num_rounds: int) -> list[Row]:
    """Ask a server that never answers."""
    path = f"{folder}/silent"
    with contextlib.ExitStack() as undo:
        silent = undo.enter_context(socket.socket(socket.AF_UNIX))
        silent.bind(path)
        silent.listen(4 * NUM_LATE * num_rounds)
        backend = undo.enter_context(contextlib.closing(make_backend(f"unix://{path}")))
        pool = undo.enter_context(ThreadPoolExecutor(NUM_LATE))

        def ask(_: int) -> float:
            started = time.monotonic()
            with contextlib.suppress(BackendError):
                backend.get_many([NAME], deadline=started + LATE_S)
            return time.monotonic() - started

        samplers: dict[str, Sampler] = {
            "1 thread": lambda: ask(0),
            f"{NUM_LATE} threads": lambda: max(pool.map(ask, range(NUM_LATE))),
        }
        figures = compare(samplers, num_rounds)
    return [
        row("late", params, taken * 1e3, "ms", peer="its deadline", peer_value=LATE_S * 1e3)
        for params, taken in figures.items()
    ]


def _records(path: str) -> SharedRecords:
    return SharedRecords(make_backend(f"unix://{path}"), max_bytes=256 << 20, ttl_s=60.0)


def _get_record(records: SharedRecords, num_bytes: int) -> object:
    (found,) = records.get_many([NAME], deadline=_deadline())
    if not isinstance(found, Found) or found.nbytes != num_bytes:
        raise RuntimeError(f"the record is lost: {found}")
    return found


def _get_value(backend: Backend) -> object:
    return backend.get_many([NAME], deadline=_deadline())


def _put_record(records: SharedRecords, others: Iterator[bytes]) -> None:
    if records.save(NAME, [next(others)], deadline=_deadline()) != "kept":
        raise RuntimeError("the record was not saved")


def _put_value(backend: Backend, value: bytes) -> None:
    backend.put("value", [value], ttl_s=PATIENCE_S, deadline=_deadline())


def _rows(size: str, calls: Mapping[str, Callable[[], object]], num_rounds: int) -> list[Row]:
    samplers = {name: partial(wall_us, call, CALLS.get(size, 1)) for name, call in calls.items()}
    figures = compare(samplers, num_rounds)
    return [
        row(name, size, figures[name], "us", peer=peer, peer_value=figures[peer])
        for name in figures
        if name not in (RAW, REDIS_PY)
        for peer in (REDIS_PY, RAW)
    ]


def _deadline() -> float:
    return time.monotonic() + PATIENCE_S


def _open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    if not has_redis_server():
        raise Unavailable("redis-server is not installed")
    folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="mmc-l2-"))
    path = str(Path(folder) / "redis")
    undo.enter_context(redis_server(path))
    own = {"get": partial(gets, path), "put": partial(puts, path), "late": partial(late, folder)}
    return {**own, "mooncake": second_level_mooncake.measure}


def main() -> None:
    harness.main(
        "a second level beside redis-py and a bare socket",
        ["get", "put", "late", "mooncake"],
        _open_sections,
        rounds=(USUAL_ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )


if __name__ == "__main__":
    main()
