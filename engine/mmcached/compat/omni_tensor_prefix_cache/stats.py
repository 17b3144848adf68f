"""Statistics of the tensor prefix cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorPrefixCacheStats:
    """Statistics of the cache: `row_queries` and `row_hits` are counters, the rest are gauges.

    `row_queries` and `row_hits` count the rows requested for hits' prefixes and those delivered. `written_bytes` are
    the bytes of rows that can be delivered, `deferred_rows` the staged rows that are not written yet.
    """

    keys: int
    row_queries: int
    row_hits: int
    written_bytes: int
    deferred_rows: int
