"""Figures of the store's fetches from the second level, and of what it is asked to keep, as a part of `stats`."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from mmcached.wire.figures import Gauge, Metric, StatsRecord

WarmUpState = Literal["off", "waiting", "running", "done"]
WARM_UP_STATES: tuple[WarmUpState, ...] = get_args(WarmUpState)
"""State of the warm-up of a store; waiting: for the second level to tell names, however long it is not reached."""


class FetchStats(StatsRecord, frozen=True):
    """The store's fetches from the second level by outcome, and the number of requests that wait for one.

    `saves_dropped` are saves that the second level's process did not take in time. `waiting_drops` are drops that it
    has not confirmed; `dropped` records were dropped here because another host had dropped them. `warmed` records were
    fetched because other hosts had found them last, `warm_skipped` were named by them and not fetched: they were here
    already, or are not in the second level, or have no room. `warm_up` is an index of `WARM_UP_STATES`.
    """

    parked: Annotated[Gauge, Metric("l2_parked")] = 0
    hits: Annotated[int, Metric("l2_fetches", outcome="hit")] = 0
    misses: Annotated[int, Metric("l2_fetches", outcome="miss")] = 0
    late: Annotated[int, Metric("l2_fetches", outcome="late")] = 0
    failed: Annotated[int, Metric("l2_fetches", outcome="failed")] = 0
    overtaken: Annotated[int, Metric("l2_fetches", outcome="overtaken")] = 0
    saves_dropped: Annotated[int, Metric("l2_requests", op="put", outcome="dropped")] = 0
    waiting_drops: Annotated[Gauge, Metric("l2_waiting_drops")] = 0
    dropped: Annotated[int, Metric("l2_dropped_records")] = 0
    warmed: Annotated[int, Metric("l2_warmed_records")] = 0
    warm_skipped: Annotated[int, Metric("l2_warm_skipped_records")] = 0
    warm_up: Annotated[Gauge, Metric("l2_warm_up")] = 0


class PrefetchStats(StatsRecord, frozen=True):
    """The prefetches of clients by outcome, and those under way; `refused` were beyond the limit of a client."""

    open: Annotated[Gauge, Metric("l2_prefetching")] = 0
    hits: Annotated[int, Metric("l2_prefetches", outcome="hit")] = 0
    misses: Annotated[int, Metric("l2_prefetches", outcome="miss")] = 0
    failed: Annotated[int, Metric("l2_prefetches", outcome="failed")] = 0
    overtaken: Annotated[int, Metric("l2_prefetches", outcome="overtaken")] = 0
    refused: Annotated[int, Metric("l2_prefetches", outcome="refused")] = 0


class PinStats(StatsRecord, frozen=True):
    """The records of the store that clients have pinned."""

    records: Annotated[Gauge, Metric("store_pins")] = 0
    bytes: Annotated[Gauge, Metric("store_pins_bytes")] = 0
