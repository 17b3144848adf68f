"""Counts the work of this process's threads, for its slot of the stats page."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from mmcached.wire.latency import Latency
from mmcached.wire.stats import TROUBLES, SecondLevelStats, Trouble

Op = Literal["get", "put", "claim"]


class Counts:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._latencies: dict[Op, Latency] = {"get": Latency(), "put": Latency(), "claim": Latency()}

    def add(self, **more: int) -> None:
        """Add to fields of `SecondLevelStats`, by name."""
        with self._lock:
            self._counts.update(more)

    @contextmanager
    def timed(self, op: Op) -> Iterator[None]:
        """Measure a call to the second level, however it ends."""
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._latencies[op].add(time.perf_counter() - began)

    def stats(
        self,
        *,
        circuit_open: bool,
        waiting_saves: int,
        waiting_bytes: int,
        trouble: Trouble = "",
        is_apart: bool = False,
        has_other_version: bool = False,
    ) -> SecondLevelStats:
        with self._lock:
            return SecondLevelStats(
                **self._counts,
                get_latency=self._latencies["get"].histogram(),
                put_latency=self._latencies["put"].histogram(),
                claim_latency=self._latencies["claim"].histogram(),
                circuit_open=int(circuit_open),
                waiting_saves=waiting_saves,
                waiting_bytes=waiting_bytes,
                trouble=TROUBLES.index(trouble),
                apart=int(is_apart),
                other_version=int(has_other_version),
            )
