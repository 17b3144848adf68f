"""Frozen records of what each part has counted since it started. Counters only rise; gauges say so."""

from __future__ import annotations

import msgspec


class Stats(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all statistics records."""


class ProcessorCacheStats(Stats, frozen=True):
    """The sender cache of P0. One query per item of a request; a hit is an item that was not preprocessed.

    `inline_items` travelled as message frames: too small, too large, cache off, or ring full of leased chunks.
    """

    queries: int = 0
    hits: int = 0
    items_processed: int = 0
    inline_items: int = 0
    inline_fallbacks: int = 0


class RingStats(Stats, frozen=True):
    """The ring as its writer sees it. `*_bytes` in use and `leases` are gauges."""

    data_bytes: int = 0
    used_bytes: int = 0
    pinned_bytes: int = 0
    chunks: int = 0
    leases: int = 0
    puts: int = 0
    put_bytes: int = 0
    evictions: int = 0
    refusals: int = 0
    grants: int = 0


class KVCacheStats(Stats, frozen=True):
    """KV prefix cache, in tokens: `queries` asked at admission, `hits` not recomputed."""

    queries: int = 0
    hits: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    blocks_total: int = 0


class EncoderCacheStats(Stats, frozen=True):
    """Encoder cache books: one query per item that a request needs, a hit is an item that is not encoded again."""

    queries: int = 0
    hits: int = 0
    embeds_used: int = 0
    embeds_total: int = 0
    evictions: int = 0


class WorkerStats(Stats, frozen=True):
    """One worker. `prefix_*` count rows of the tensor prefix cache (rank 0 only)."""

    items_encoded: int = 0
    embeds_encoded: int = 0
    tokens_computed: int = 0
    items_viewed: int = 0
    bytes_viewed: int = 0
    items_copied: int = 0
    bytes_copied: int = 0
    encoder_entries: int = 0
    encoder_bytes: int = 0
    prefix_row_queries: int = 0
    prefix_row_hits: int = 0
    prefix_bytes: int = 0


class EngineStats(Stats, frozen=True):
    """One engine and its workers. `requests_*` and `leases_held` are gauges."""

    steps: int = 0
    requests_running: int = 0
    requests_waiting: int = 0
    requests_finished: int = 0
    preemptions: int = 0
    leases_held: int = 0
    kv: KVCacheStats = KVCacheStats()
    encoder: EncoderCacheStats = EncoderCacheStats()
    workers: list[WorkerStats] = []


class ServiceStats(Stats, frozen=True):
    """All roles. `requests_open` and `clients` (those that live) are gauges."""

    requests_open: int = 0
    requests_done: int = 0
    requests_failed: int = 0
    protocol_errors: int = 0
    resends: int = 0
    clients: int = 0
    processor: ProcessorCacheStats = ProcessorCacheStats()
    ring: RingStats = RingStats()
    engines: list[EngineStats] = []
