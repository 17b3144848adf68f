"""Measures every kind of call at every size, with some numbers of clients, in turns.

The store is a service of its own in a folder of its own, without workers, as is Redis: services on this host are not
touched, although they share the processor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn

from mmcached.cli.bench import client
from mmcached.cli.bench.client import key_of, value_of
from mmcached.cli.bench.figures import MIB, OF_REDIS, READS, CallFigure, CallKind, figure, size_text
from mmcached.cli.bench.processes import Process, answer, measuring, tell
from mmcached.cli.bench.redis import RawRedis, has_redis_server, redis_server
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.shm.segment.segment import HostCalls
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import ConfigError

NUM_ROUNDS = 2
STORE_BYTES = 512 * MIB
SHARE = 0.5
"""Share of the room in /dev/shm for the store."""
RECORDS_IN_STORE = 8
"""Number of the largest records that the store must hold, so that a put evicts no record that is being put."""


def measure(sizes: Sequence[int], clients: Sequence[int], seconds: float) -> list[CallFigure]:
    """Return the figures, by number of clients, size and kind; with a progress bar on a terminal.

    Args:
        sizes: Bytes of a record's tensor.
        seconds: Time for all figures together, without the start of the processes.

    Raises:
        ConfigError: /dev/shm has no room for records of that size.
        ServiceUnavailable: The store, Redis or a client has not started, or was killed.
    """
    store_bytes = _room_for(sizes)
    kinds = [kind for kind in CallKind if kind not in OF_REDIS or has_redis_server()]
    each_s = seconds / (len(sizes) * len(clients) * len(kinds) * NUM_ROUNDS)
    # In a pipe it prints nothing.
    bar = Progress(*Progress.get_default_columns()[:-1], TimeRemainingColumn(), console=Console(stderr=True))
    bar.disable = not bar.console.is_terminal
    found = []
    with bar, _stores(store_bytes) as (run_dir, redis), Client(run_dir, fail_open=False) as filler:
        task = bar.add_task("", total=len(sizes) * len(clients) * len(kinds))
        for num_clients in clients:
            with measuring(client.__name__, [str(run_dir), *([redis] if redis else [])], num_clients) as processes:
                for num_bytes in sizes:
                    bar.update(task, description=f"{num_clients} × {size_text(num_bytes)}")
                    for each in _turns(kinds, num_bytes, each_s, processes, partial(_fill, filler, redis)):
                        found.append(each)
                        bar.advance(task)
    return found


def _room_for(sizes: Sequence[int]) -> int:
    """Return the size of the store, which must hold the largest records."""
    store_bytes = min(STORE_BYTES, int(HostCalls().shm_free_bytes() * SHARE)) // MIB * MIB
    largest = max(sizes)
    if largest > store_bytes // RECORDS_IN_STORE:
        limit = f"of a /dev/shm with room for {HostCalls().shm_free_bytes() // MIB} MiB take at most "
        raise ConfigError("sizes", size_text(largest), limit + size_text(store_bytes // RECORDS_IN_STORE))
    return store_bytes


@contextmanager
def _stores(store_bytes: int) -> Iterator[tuple[Path, str | None]]:
    with tempfile.TemporaryDirectory(prefix="mmc-bench-") as folder, ExitStack() as stack:
        run_dir = Path(folder) / "run"
        config = ServiceConfig(world_size=0, store_gb=store_bytes / GIB, log_level="warning")
        stack.enter_context(ChildService(run_dir, config, Path(folder) / "config.json"))
        redis = str(Path(folder) / "redis") if has_redis_server() else None
        if redis is not None:
            stack.enter_context(redis_server(redis))
        yield run_dir, redis


def _turns(
    kinds: Sequence[CallKind],
    num_bytes: int,
    seconds: float,
    processes: Sequence[Process],
    fill: Callable[[CallKind, int], None],
) -> Iterator[CallFigure]:
    times: dict[CallKind, list[list[float]]] = {kind: [[] for _ in processes] for kind in kinds}
    for _ in range(NUM_ROUNDS):
        for kind in kinds:
            if kind in READS:
                fill(kind, num_bytes)
            for process in processes:
                tell(process, kind, num_bytes, seconds)
            for of_process, process in zip(times[kind], processes, strict=True):
                of_process.extend(answer(process))
    for kind in kinds:
        yield figure(kind, num_bytes, times[kind])


def _fill(filler: Client, redis: str | None, kind: CallKind, num_bytes: int) -> None:
    """Put the record for reads, unless it is there; puts of other keys may have evicted it."""
    key, value = key_of(num_bytes), value_of(num_bytes)
    if kind == CallKind.REDIS_GET and redis is not None:
        with closing(RawRedis(redis, num_bytes)) as connection:
            connection.set(key, value.data)
    elif not filler.contains_many([key])[0]:
        filler.put(key, {"x": value})
