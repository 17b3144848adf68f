"""Measures a second level in Mooncake Store beside Mooncake's own client, for `second_level`.

A process of Mooncake's own lends the memory, so each value crosses the loopback; all ask in turns.

value        what lies under one name, as the backend hands it on
record       the same framed, its sum judged
Mooncake     its `get` and `upsert` of the same bytes
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

from mmcached.second_level.records import Found
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from scripts.bench.harness import Row, Unavailable, compare, row, wall_us
from scripts.bench.stores import mooncake_lender, mooncake_master, mooncake_store

MOONCAKE = "Mooncake"
SIZES = {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "4.7 MiB": 4_930_000, "16 MiB": 16 << 20}
NAME = "ab" * 32
PATIENCE_S = 60.0


def measure(num_rounds: int) -> list[Row]:
    """Get and put."""
    with contextlib.ExitStack() as undo:
        try:
            port = undo.enter_context(mooncake_master())
            undo.enter_context(mooncake_lender(port))
        except (ImportError, OSError, RuntimeError) as error:
            raise Unavailable(f"Mooncake Store: {str(error).splitlines()[0][:120]}") from None
        own = mooncake_store(port, 0)
        undo.callback(own.close)
        url = f"mooncake://127.0.0.1:{port}?segment_mb=0"
        backend = undo.enter_context(contextlib.closing(make_backend(url)))
        records = undo.enter_context(SharedRecords(make_backend(url), max_bytes=256 << 20, ttl_s=60.0))
        rows = []
        for size, num_bytes in SIZES.items():
            value = os.urandom(num_bytes)
            others = cycle([os.urandom(num_bytes) for _ in range(2)])
            _answer_0(own.upsert("plain", value))
            records.save(NAME, [value], deadline=_deadline())
            gets: dict[str, Callable[[], object]] = {
                "get, value": lambda: backend.get_many([NAME], deadline=_deadline()),
                "get, record": partial(_get_record, records, num_bytes),
                MOONCAKE: partial(own.get, "plain"),
            }
            puts: dict[str, Callable[[], object]] = {
                "put, value": partial(_put_value, backend, value),
                "put, record": partial(_put_record, records, others),
                MOONCAKE: partial(_put_plain, own, value),
            }
            for calls in (gets, puts):
                figures = compare({name: partial(wall_us, call) for name, call in calls.items()}, num_rounds)
                rows += [
                    row(f"Mooncake {name}", size, taken, "us", peer=MOONCAKE, peer_value=figures[MOONCAKE])
                    for name, taken in figures.items()
                    if name != MOONCAKE
                ]
        return rows


def _get_record(records: SharedRecords, num_bytes: int) -> None:
    (found,) = records.get_many([NAME], deadline=_deadline())
    if not isinstance(found, Found) or found.nbytes != num_bytes:
        raise RuntimeError(f"the record is lost: {found}")


def _put_value(backend: Any, value: bytes) -> None:
    backend.put("value", [value], ttl_s=60.0, deadline=_deadline())


def _put_record(records: SharedRecords, others: Any) -> None:
    records.save(NAME, [next(others)], deadline=_deadline())


def _put_plain(own: Any, value: bytes) -> None:
    _answer_0(own.upsert("own", value))


def _answer_0(status: int) -> None:
    if status:
        raise RuntimeError(f"Mooncake refuses: {status}")


def _deadline() -> float:
    return time.monotonic() + PATIENCE_S
