"""Frozen records of what each part has counted since it started, and the names of those who count.

A field is a counter, which only rises, unless its type says `Gauge`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import msgspec

GAUGE_MARK = "is_gauge"
Gauge = Annotated[int, msgspec.Meta(extra={GAUGE_MARK: True})]
"""A figure of this moment: starts at 0 when its role starts, and may fall."""


class RoleName(msgspec.Struct, frozen=True, order=True):
    """Who counts: one process of the service. `engine` and `rank` are 0 where they mean nothing.

    >>> str(RoleName("frontend")), str(RoleName("engine", 0)), str(RoleName("worker", 0, 3))
    ('frontend', 'engine 0', 'worker 0.3')
    """

    kind: Literal["supervisor", "frontend", "engine", "worker"]
    engine: int = 0
    rank: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "engine":
                return f"engine {self.engine}"
            case "worker":
                return f"worker {self.engine}.{self.rank}"
            case _:
                return self.kind


class Stats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all statistics records."""


class ProcessorCacheStats(Stats, frozen=True):
    """The sender cache of P0. One query per item of a request; a hit is an item that was not preprocessed for it. An
    item that a request names twice counts once.

    `inline_items` travelled as message frames: too small, too large, cache off, or ring full of leased chunks.
    `items_waiting` are more than there are threads to process them; for each of `busy_refusals` requests too many did.
    """

    queries: int = 0
    hits: int = 0
    items_processed: int = 0
    inline_items: int = 0
    inline_fallbacks: int = 0
    items_waiting: Gauge = 0
    busy_refusals: int = 0


class RingStats(Stats, frozen=True):
    """The ring as its writer sees it."""

    data_bytes: Gauge = 0
    used_bytes: Gauge = 0
    pinned_bytes: Gauge = 0
    populated_bytes: Gauge = 0
    chunks: Gauge = 0
    leases: Gauge = 0
    fenced_rows: Gauge = 0
    puts: int = 0
    put_bytes: int = 0
    evictions: int = 0
    refusals: int = 0
    grants: int = 0
    lost_leases: int = 0


class StoreStats(Stats, frozen=True):
    """The store that clients get from and put into. One query per key that is asked for, a hit is a key that has a
    record.

    `puts` were kept, `refusals` not (too large, full, quota, an old epoch); `quota_evictions` went for their tenant's
    quota. `inline_records` were sent as message frames, for want of a row or of a lease; `withheld_records` were not,
    because the answer had become too large. `claims` were granted, to compute a record; `waits` are the requests that
    waited for somebody else's.
    """

    queries: int = 0
    hits: int = 0
    puts: int = 0
    refusals: int = 0
    quota_evictions: int = 0
    inline_records: int = 0
    withheld_records: int = 0
    claims: int = 0
    waits: int = 0
    computing: Gauge = 0
    waiting: Gauge = 0
    rows: Gauge = 0
    new_epochs: int = 0
    ring: RingStats = RingStats()


class KVCacheStats(Stats, frozen=True):
    """KV prefix cache, in tokens: `queries` asked at admission, `hits` not recomputed."""

    queries: int = 0
    hits: int = 0
    blocks_used: Gauge = 0
    blocks_cached: Gauge = 0
    blocks_total: Gauge = 0


class EncoderCacheStats(Stats, frozen=True):
    """Encoder cache books: one query per item that a request needs, a hit is an item that is not encoded again.

    `bytes_*` are `embeds_*` with the width that the workers have measured, 0 until one has; `step_bytes` is what one
    step may compute.
    """

    queries: int = 0
    hits: int = 0
    embeds_used: Gauge = 0
    embeds_total: Gauge = 0
    bytes_used: Gauge = 0
    bytes_total: Gauge = 0
    step_bytes: Gauge = 0
    evictions: int = 0


class WorkerStats(Stats, frozen=True):
    """One worker. `prefix_*` count rows of the tensor prefix cache (rank 0 only), of each key; its evictions are
    blocks.
    """

    items_encoded: int = 0
    embeds_encoded: int = 0
    tokens_computed: int = 0
    items_viewed: int = 0
    bytes_viewed: int = 0
    items_copied: int = 0
    bytes_copied: int = 0
    encoder_entries: Gauge = 0
    encoder_bytes: Gauge = 0
    prefix_row_queries: int = 0
    prefix_row_hits: int = 0
    prefix_bytes: Gauge = 0
    prefix_evictions: int = 0


class EngineStats(Stats, frozen=True):
    """One engine and its workers.

    `steps_failed` could not be computed, `deaths_in_steps` are workers that died while they computed one; each of the
    `poisonous_requests` has killed several. `faults` are our own: handlers that raised what nobody expected.
    """

    steps: int = 0
    steps_failed: int = 0
    deaths_in_steps: int = 0
    poisonous_requests: int = 0
    faults: int = 0
    requests_running: Gauge = 0
    requests_waiting: Gauge = 0
    requests_finished: int = 0
    preemptions: int = 0
    leases_held: Gauge = 0
    kv: KVCacheStats = KVCacheStats()
    encoder: EncoderCacheStats = EncoderCacheStats()
    workers: list[WorkerStats] = []


class FrontendStats(Stats, frozen=True):
    """The frontend. `clients` are those that live, `connections` those that are connected.

    `clients_refused` were one too many, `clients_disconnected` did not read, or did not end a message; `faults` are our
    own: handlers that raised what nobody expected.

    `desyncs` counts items that the sender believed in an engine's mirrored cache and that were not there: must stay 0.
    """

    requests_open: Gauge = 0
    requests_done: int = 0
    requests_failed: int = 0
    protocol_errors: int = 0
    resends: int = 0
    lease_refusals: int = 0
    clients: Gauge = 0
    connections: Gauge = 0
    clients_refused: int = 0
    clients_disconnected: int = 0
    faults: int = 0
    processor: ProcessorCacheStats = ProcessorCacheStats()
    ring: RingStats = RingStats()
    desyncs: int = 0
    store: StoreStats = StoreStats()


class SupervisorStats(Stats, frozen=True):
    """The supervisor: `restarts` of all roles together; `draining` is 1 from the first signal on."""

    restarts: int = 0
    draining: Gauge = 0


class ServiceStats(FrontendStats, frozen=True):
    """The frontend, and its engines with their workers."""

    engines: list[EngineStats] = []


StatsT = TypeVar("StatsT", bound=Stats)


def extend(stats: Stats, kind: type[StatsT], **more: object) -> StatsT:
    """Return a record of a larger kind with the fields of `stats` and what is added."""
    return kind(**(msgspec.structs.asdict(stats) | more))
