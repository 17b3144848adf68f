"""A client process that makes the calls it is ordered to, and returns the time of each.

    python -m mmcached.cli.bench.client RUN_DIR [REDIS_SOCKET]

Reads `[kind, bytes, seconds]` per line of its input, and answers each with the microseconds of each call, at least
three. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mmcached.cli.bench.figures import CallKind
from mmcached.cli.bench.processes import READY
from mmcached.cli.bench.redis import RawRedis
from mmcached.client import Client
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.process.death import arm_from_environment

MIN_CALLS = 3


def key_of(num_bytes: int) -> str:
    return f"{num_bytes} bytes"


def value_of(num_bytes: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)


def main(run_dir: Path, redis: str | None) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(Client(run_dir, fail_open=False))
        calls = _Calls(client, redis, stack)
        sys.stdout.write(READY)
        sys.stdout.flush()
        for line in sys.stdin:
            kind, num_bytes, seconds = json.loads(line)
            sys.stdout.write(json.dumps(_times_us(calls.prepare(CallKind(kind), num_bytes), seconds)) + "\n")
            sys.stdout.flush()


class _Calls:
    """Prepares the calls; a connection to Redis lasts until the process ends."""

    def __init__(self, client: Client, redis: str | None, stack: ExitStack) -> None:
        self._client = client
        self._redis = redis
        self._stack = stack
        self._numbers = count()
        self._value = cache(value_of)

    def prepare(self, kind: CallKind, num_bytes: int) -> Callable[[], Any]:
        value = self._value(num_bytes)
        match kind:
            case CallKind.VIEW | CallKind.OWNED:
                return partial(self._read, key_of(num_bytes), view=kind == CallKind.VIEW)
            case CallKind.PUT:
                return lambda: self._client.put(self._new_key(), {"x": value})
            case CallKind.COMPUTE:
                return lambda: self._client.get_or_compute(self._new_key(), lambda: {"x": value}, tensors="numpy")
            case CallKind.MEMCPY:
                return partial(np.copyto, np.zeros_like(value), value)
            case CallKind.REDIS_GET | CallKind.REDIS_SET:
                if self._redis is None:
                    raise ServiceUnavailable("there is no Redis")
                connection = self._stack.enter_context(closing(RawRedis(self._redis, num_bytes)))
                if kind == CallKind.REDIS_GET:
                    return partial(connection.get, key_of(num_bytes))
                return partial(connection.set, f"{os.getpid()}", value.data)

    def _read(self, key: str, *, view: bool) -> Any:
        hit = self._client.get(key, view=view, tensors="numpy")
        if hit is None:
            raise ServiceUnavailable(f"the record {key!r} is gone")
        with hit:
            return hit.record["x"][-1]

    def _new_key(self) -> str:
        return f"{os.getpid()} {next(self._numbers)}"


def _times_us(call: Callable[[], Any], seconds: float) -> list[float]:
    """Return the time of each call, without the first one, which connects, maps and faults."""
    call()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < MIN_CALLS or time.perf_counter() < until:
        started = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - started) / 1000)
    return times


if __name__ == "__main__":
    arm_from_environment()
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
