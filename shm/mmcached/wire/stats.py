"""The statistics of each role since its start, with the metric of each figure.

A field is a counter, which only rises, unless its type is `Gauge`. Its `Metric`s are its names on the metrics page;
`METRICS` has the help text of each metric. Those of engines and workers are in `engine_stats`. A field with `By` is a
table, with counters for each key (client, tenant). The stats page, the metrics page, `info`, the status lines of tables
and `client.stats()` follow from these records. So a new figure is a field (and a line of `METRICS`) here, and the line
that counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

import msgspec

from mmcached.wire.engine_stats import ENGINE_METRICS, EngineStats
from mmcached.wire.fetch_stats import FetchStats, PinStats, PrefetchStats
from mmcached.wire.figures import By, Gauge, Metric, Of, StatsRecord, of_modality
from mmcached.wire.latency import Histogram
from mmcached.wire.saved_stats import SavedStats
from mmcached.wire.slow_log import SlowLog

METRICS: Mapping[str, str] = {
    "supervisor_restarts": "restarts of all roles of the service by the supervisor",
    "requests_open": "client requests that are accepted and not answered yet",
    "requests": "requests answered, by outcome done or failed",
    "protocol_errors": "message frames that did not validate",
    "resends": "requests sent again after a typed miss",
    "clients": "client objects that hold their lock; a service's own workers are clients too",
    "connections": "client connections that are open",
    "clients_refused": "client connections refused because too many were open",
    "clients_disconnected": "clients disconnected because they did not read, or did not end a message",
    "faults": "unexpected exceptions in message handlers: bugs of mmcached",
    "desync": "items lost from a mirrored cache: must stay 0",
    "cache_queries": "look-ups in a cache, in items, tokens (kv_prefix) or rows (tensor_prefix)",
    "cache_hits": "successful look-ups in a cache, in the unit of mmcached_cache_queries",
    "saved_work": "work saved by cache hits, in items, tokens (prefill) or rows",
    "items_processed": "items preprocessed",
    "items_waiting": "items that wait for a thread to preprocess them",
    "items_busy_refusals": "requests refused because too many items waited",
    "modality_queries": "items that requests needed, by modality: an image is one item, each slice of a clip is one",
    "modality_hits": "items that a request needed and that were not preprocessed for it, by modality",
    "modality_processed": "items preprocessed, by modality",
    "items_inline": "items sent as message frames, not through the store",
    "ring_fallbacks": "items sent as message frames because the ring had no room",
    "items_beyond_quota": "items sent as message frames because the engine's requests had too much in the ring",
    "cache_insertions": "items put into a cache",
    "cache_evictions": "items evicted from a cache for room",
    "cache_rejections": "items refused by a cache because too much of it is leased",
    "cache_bytes": "bytes of a cache in use",
    "cache_capacity_bytes": "size of a cache in bytes",
    "cache_entries": "items that a cache holds",
    "cache_pinned_bytes": "bytes of a cache that cannot be evicted now",
    "leases": "leases that an engine holds for its requests (side reader)",
    "store_capacity_bytes": "size of the ring in bytes, records and items together; 0 without a ring",
    "store_used_bytes": "bytes of the ring in use by records and items",
    "store_pinned_bytes": "bytes of the ring in use by leased or pinned records and items",
    "store_populated_bytes": "bytes of the ring whose pages are mapped; rises after the start",
    "store_records": "records and items that the ring holds",
    "store_leases": "leases that clients, engines and workers hold",
    "store_clients": "clients, engines and workers with an entry of the ring, which read in place",
    "store_fenced_rows": "readers that gave back more leases than they had",
    "store_written_bytes": "payload bytes put into the ring, of records and items",
    "store_inline": "records sent as message frames, not through the ring",
    "store_withheld": "records not sent because the answer had become too large",
    "store_puts": "puts by outcome: kept (or stored already), refused",
    "client_hits": "keys that clients of this name have looked up and found",
    "client_misses": "keys that clients of this name have looked up and not found",
    "client_puts": "records of clients of this name that were kept (or stored already)",
    "saved_seconds": "seconds that computing the found records would have taken, at least, by kind and modality",
    "tenant_saved_seconds": "the same by tenant; default is the tenant without a name",
    "hit_seconds": "a client's successful look-up, until the client has the record; one of 64 is measured",
    "put_seconds": "a put, from its message until its record is kept",
    "store_quota_evictions": "records evicted for their tenant's quota",
    "store_verified": "hits that a host has recomputed, because of mmcached verify",
    "store_different": "of these, hits that differed from their recomputation",
    "store_refused_names": "names that are not shared since a hit of theirs differed, until the next flush",
    "store_expired": "records dropped because their time to live was over",
    "store_nurseries": "nurseries: files into which clients write large records themselves",
    "store_nursery_bytes": "bytes of all nurseries together, of their share of the store",
    "store_nursery_puts": "records published where their clients had written them",
    "store_nursery_refusals": "puts that travelled inline because their nursery had no room for them",
    "store_promotions": "records copied out of nurseries into the ring: they had been read, or it had free room",
    "l2_parked": "requests that wait for the second level now",
    "l2_fetches": "fetches from the second level, by outcome; overtaken: a local client has put the record first",
    "l2_waiting_drops": "drops that the second level has not confirmed",
    "l2_dropped_records": "records dropped here because another host has dropped them",
    "l2_warmed_records": "records fetched at the start because other hosts had found them last",
    "l2_warm_skipped_records": "records that other hosts had found last, not fetched: here already, gone, or no room",
    "l2_warm_up": "warm-up of the store: 0 off, 1 waits for the second level, 2 running, 3 done",
    "l2_prefetching": "prefetches that wait or are under way now",
    "l2_prefetches": "prefetches by outcome; overtaken: a put or a request came first; refused: beyond a limit",
    "store_pins": "records that clients have pinned",
    "store_pins_bytes": "bytes of the records that clients have pinned",
    "store_claims": "clients told to compute a missing record",
    "store_waits": "requests that waited for another client's computation",
    "store_computing": "open claims of clients to compute a record",
    "store_waiting": "requests that wait now for another client's computation",
    "store_epochs": "new epochs of the store: each makes all records unreachable, as the weights have changed",
    "l2_requests": "calls to the second level, by op get, put, claim, drop or flush, and by outcome",
    "l2_seconds": "a call to the second level, for one or more records",
    "l2_bytes": "bytes of records read from or written to the second level, by direction",
    "l2_circuit_open": "1 while the second level is not called because it has failed too often",
    "l2_apart": "1 while the second level is not used because another host was flushed and this one was not",
    "l2_other_version": "1 while the host that was flushed last has another version than this one",
    "l2_waiting_saves": "records that wait to be saved in the second level",
    "l2_waiting_bytes": "bytes of records that wait to be saved in the second level",
    **ENGINE_METRICS,
}
"""The help text of each metric, in the order of the metrics page."""


class RoleName(msgspec.Struct, frozen=True, order=True):
    """The name of one process of the service. `engine` and `rank` are 0 where they do not apply.

    >>> str(RoleName("second_level")), str(RoleName("engine", 0)), str(RoleName("worker", 0, 3))
    ('second level', 'engine 0', 'worker 0.3')
    """

    kind: Literal["supervisor", "frontend", "second_level", "engine", "worker"]
    engine: int = 0
    rank: int = 0

    def __str__(self) -> str:
        match self.kind:
            case "engine":
                return f"engine {self.engine}"
            case "worker":
                return f"worker {self.engine}.{self.rank}"
            case _:
                return self.kind.replace("_", " ")


class ItemsOfModality(StatsRecord, frozen=True):
    """Items of one modality; `ProcessorCacheStats` has the totals."""

    queries: Annotated[int, of_modality("queries")] = 0
    hits: Annotated[int, of_modality("hits")] = 0
    processed: Annotated[int, of_modality("processed")] = 0


class ItemsByModality(StatsRecord, frozen=True):
    image: Annotated[ItemsOfModality, Of("image")] = ItemsOfModality()
    video: Annotated[ItemsOfModality, Of("video")] = ItemsOfModality()
    audio: Annotated[ItemsOfModality, Of("audio")] = ItemsOfModality()


class ProcessorCacheStats(StatsRecord, frozen=True):
    """The sender cache of P0. One query per item of a request; a hit is an item that was not preprocessed for it.

    An item that a request names twice counts once.
    """

    queries: Annotated[int, Metric("cache_queries", cache="processor")] = 0
    hits: Annotated[int, Metric("cache_hits", cache="processor"), Metric("saved_work", work="preprocessing")] = 0
    items_processed: Annotated[int, Metric("items_processed")] = 0
    inline_items: Annotated[int, Metric("items_inline")] = 0
    inline_fallbacks: Annotated[int, Metric("ring_fallbacks")] = 0
    items_waiting: Annotated[Gauge, Metric("items_waiting")] = 0
    busy_refusals: Annotated[int, Metric("items_busy_refusals")] = 0
    by_modality: ItemsByModality = ItemsByModality()


def _of_cache(name: str, cache: str = "store", needs: str = "data_bytes") -> Metric:
    """Return the metric of a cache in the ring; it is left out while the frontend has no ring yet."""
    return Metric(f"cache_{name}", needs=needs, cache=cache)


def _of_items(name: str) -> Metric:
    return _of_cache(name, "processor", "capacity_bytes")


class ItemStats(StatsRecord, frozen=True):
    """The processed items in the ring; `pinned_bytes` are those of open requests."""

    capacity_bytes: Annotated[Gauge, _of_items("capacity_bytes")] = 0
    used_bytes: Annotated[Gauge, _of_items("bytes")] = 0
    pinned_bytes: Annotated[Gauge, _of_items("pinned_bytes")] = 0
    entries: Annotated[Gauge, _of_items("entries")] = 0
    puts: Annotated[int, _of_items("insertions")] = 0
    evictions: Annotated[int, _of_items("evictions")] = 0
    refusals: Annotated[int, _of_items("rejections")] = 0


class RingStats(StatsRecord, frozen=True):
    """The ring as its writer sees it, with records and items."""

    data_bytes: Annotated[Gauge, _of_cache("capacity_bytes"), Metric("store_capacity_bytes")] = 0
    used_bytes: Annotated[Gauge, _of_cache("bytes"), Metric("store_used_bytes")] = 0
    pinned_bytes: Annotated[Gauge, _of_cache("pinned_bytes"), Metric("store_pinned_bytes")] = 0
    populated_bytes: Annotated[Gauge, Metric("store_populated_bytes")] = 0
    chunks: Annotated[Gauge, _of_cache("entries"), Metric("store_records")] = 0
    leases: Annotated[Gauge, Metric("store_leases")] = 0
    fenced_readers: Annotated[Gauge, Metric("store_fenced_rows")] = 0
    puts: Annotated[int, _of_cache("insertions")] = 0
    put_bytes: Annotated[int, Metric("store_written_bytes")] = 0
    evictions: Annotated[int, _of_cache("evictions")] = 0
    refusals: Annotated[int, _of_cache("rejections")] = 0


class StoreStats(StatsRecord, frozen=True):
    """The store for clients' records. One query per key that is looked up; a hit is a key with a record.

    `refusals` were too large, of an old epoch, over a quota, or found no room; `inline_records` had no lease;
    `nursery_puts` were published where their clients had written them, `promotions` were copied from there into the
    ring. `verified` hits were recomputed by a host, `different` ones differed.
    """

    queries: Annotated[int, Metric("cache_queries", cache="store")] = 0
    hits: Annotated[int, Metric("cache_hits", cache="store")] = 0
    puts: Annotated[int, Metric("store_puts", outcome="kept")] = 0
    refusals: Annotated[int, Metric("store_puts", outcome="refused")] = 0
    quota_evictions: Annotated[int, Metric("store_quota_evictions")] = 0
    expired: Annotated[int, Metric("store_expired")] = 0
    inline_records: Annotated[int, Metric("store_inline")] = 0
    withheld_records: Annotated[int, Metric("store_withheld")] = 0
    claims: Annotated[int, Metric("store_claims")] = 0
    waits: Annotated[int, Metric("store_waits")] = 0
    computing: Annotated[Gauge, Metric("store_computing")] = 0
    waiting: Annotated[Gauge, Metric("store_waiting")] = 0
    readers: Annotated[Gauge, Metric("store_clients")] = 0
    nurseries: Annotated[Gauge, Metric("store_nurseries")] = 0
    nursery_bytes: Annotated[Gauge, Metric("store_nursery_bytes")] = 0
    nursery_puts: Annotated[int, Metric("store_nursery_puts")] = 0
    nursery_refusals: Annotated[int, Metric("store_nursery_refusals")] = 0
    promotions: Annotated[int, Metric("store_promotions")] = 0
    new_epochs: Annotated[int, Metric("store_epochs")] = 0
    hit_latency: Annotated[Histogram, Metric("hit_seconds")] = Histogram()
    put_latency: Annotated[Histogram, Metric("put_seconds")] = Histogram()
    ring: RingStats = RingStats()
    fetches: FetchStats = FetchStats()
    prefetches: PrefetchStats = PrefetchStats()
    pins: PinStats = PinStats()
    verified: Annotated[int, Metric("store_verified")] = 0
    different: Annotated[int, Metric("store_different")] = 0
    refused_names: Annotated[Gauge, Metric("store_refused_names")] = 0
    saved: SavedStats = SavedStats()


class ClientStats(StatsRecord, frozen=True):
    """The store's figures of all clients of one name; `StoreStats` has the totals."""

    hits: Annotated[int, Metric("client_hits")] = 0
    misses: Annotated[int, Metric("client_misses")] = 0
    puts: Annotated[int, Metric("client_puts")] = 0


class TenantStats(StatsRecord, frozen=True):
    """What hits have saved one tenant, in microseconds; `StoreStats` has the totals."""

    saved_us: Annotated[int, Metric("tenant_saved_seconds", scale=1e-6)] = 0


class FrontendStats(StatsRecord, frozen=True):
    """The frontend.

    Attributes:
        desyncs: Items that were in the sender's mirror of an engine's cache, and not in the cache.
        by_client: Figures by name of client, for names that have used the store.
        by_tenant: Seconds saved by tenant, for tenants that have records of a known cost.
    """

    requests_open: Annotated[Gauge, Metric("requests_open")] = 0
    requests_done: Annotated[int, Metric("requests", outcome="done")] = 0
    requests_failed: Annotated[int, Metric("requests", outcome="failed")] = 0
    protocol_errors: Annotated[int, Metric("protocol_errors")] = 0
    resends: Annotated[int, Metric("resends")] = 0
    items_beyond_quota: Annotated[int, Metric("items_beyond_quota")] = 0
    clients: Annotated[Gauge, Metric("clients")] = 0
    connections: Annotated[Gauge, Metric("connections")] = 0
    clients_refused: Annotated[int, Metric("clients_refused")] = 0
    clients_disconnected: Annotated[int, Metric("clients_disconnected")] = 0
    faults: Annotated[int, Metric("faults")] = 0
    processor: ProcessorCacheStats = ProcessorCacheStats()
    items: ItemStats = ItemStats()
    desyncs: Annotated[int, Metric("desync", side="sender")] = 0
    store: StoreStats = StoreStats()
    slow_log: SlowLog = SlowLog()
    by_client: Annotated[dict[str, ClientStats], By("client", "store,")] = msgspec.field(default_factory=dict)
    by_tenant: Annotated[dict[str, TenantStats], By("tenant", "saved,")] = msgspec.field(default_factory=dict)


Trouble = Literal["", "unreached", "late", "denied", "full", "refused"]
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)
"""The known trouble with the server of a second level; "" for none."""


class SecondLevelStats(StatsRecord, frozen=True):
    """The process between the store and a server that several hosts share.

    `gets_*` are fetches by outcome, `queries` all of them; `claims_elsewhere` found another host's claim;
    `puts_dropped` were too old, too large, or gone from the store, `puts_over_quota` beyond the quota of their tenant.
    The latencies are of calls, which may cover many records. `trouble` is an index of `TROUBLES`. `apart`: another
    host was flushed since this one. `other_version`: and with another version.
    """

    queries: Annotated[int, Metric("cache_queries", cache="second_level")] = 0
    gets_hit: Annotated[
        int, Metric("l2_requests", op="get", outcome="hit"), Metric("cache_hits", cache="second_level")
    ] = 0
    gets_missed: Annotated[int, Metric("l2_requests", op="get", outcome="miss")] = 0
    gets_late: Annotated[int, Metric("l2_requests", op="get", outcome="late")] = 0
    gets_failed: Annotated[int, Metric("l2_requests", op="get", outcome="failed")] = 0
    puts_kept: Annotated[int, Metric("l2_requests", op="put", outcome="kept")] = 0
    puts_dropped: Annotated[int, Metric("l2_requests", op="put", outcome="dropped")] = 0
    puts_over_quota: Annotated[int, Metric("l2_requests", op="put", outcome="over_quota")] = 0
    puts_failed: Annotated[int, Metric("l2_requests", op="put", outcome="failed")] = 0
    claims_taken: Annotated[int, Metric("l2_requests", op="claim", outcome="taken")] = 0
    claims_elsewhere: Annotated[int, Metric("l2_requests", op="claim", outcome="elsewhere")] = 0
    claims_failed: Annotated[int, Metric("l2_requests", op="claim", outcome="failed")] = 0
    drops_done: Annotated[int, Metric("l2_requests", op="drop", outcome="done")] = 0
    drops_failed: Annotated[int, Metric("l2_requests", op="drop", outcome="failed")] = 0
    flushes_done: Annotated[int, Metric("l2_requests", op="flush", outcome="done")] = 0
    flushes_failed: Annotated[int, Metric("l2_requests", op="flush", outcome="failed")] = 0
    get_latency: Annotated[Histogram, Metric("l2_seconds", op="get")] = Histogram()
    put_latency: Annotated[Histogram, Metric("l2_seconds", op="put")] = Histogram()
    claim_latency: Annotated[Histogram, Metric("l2_seconds", op="claim")] = Histogram()
    bytes_read: Annotated[int, Metric("l2_bytes", direction="read")] = 0
    bytes_written: Annotated[int, Metric("l2_bytes", direction="written")] = 0
    circuit_open: Annotated[Gauge, Metric("l2_circuit_open")] = 0
    trouble: Gauge = 0
    apart: Annotated[Gauge, Metric("l2_apart")] = 0
    other_version: Annotated[Gauge, Metric("l2_other_version")] = 0
    waiting_saves: Annotated[Gauge, Metric("l2_waiting_saves")] = 0
    waiting_bytes: Annotated[Gauge, Metric("l2_waiting_bytes")] = 0
    faults: Annotated[int, Metric("faults")] = 0


class SupervisorStats(StatsRecord, frozen=True):
    """The supervisor: `restarts` of all roles together; `draining` is 1 from the first signal on."""

    restarts: Annotated[int, Metric("supervisor_restarts")] = 0
    draining: Gauge = 0


class ServiceStats(FrontendStats, frozen=True):
    """The frontend, its engines with their workers, and the second level; all zeros without one."""

    engines: list[EngineStats] = msgspec.field(default_factory=list)
    second_level: SecondLevelStats = SecondLevelStats()
