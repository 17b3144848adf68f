"""The statistics of engines and their workers, with the metric of each figure; see `stats`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from mmcached.wire.figures import Gauge, Metric, Of, StatsRecord, of_modality
from mmcached.wire.latency import Histogram
from mmcached.wire.slow_log import SlowLog

ENGINE_METRICS: Mapping[str, str] = {
    "engine_steps": "steps planned",
    "engine_steps_failed": "steps that could not be computed",
    "step_seconds": "a step, from its plan until it is committed",
    "queue_seconds": "a request in the engine, from its message until it is first scheduled",
    "engine_deaths_in_steps": "workers that died while they computed a step",
    "engine_poisonous_requests": "requests that failed because they had killed workers",
    "engine_requests": "requests in the scheduler: running, waiting",
    "engine_requests_finished": "requests that left the scheduler",
    "preemptions": "requests that had to start over because no KV block was free",
    "kv_blocks": "KV blocks used, cached, total",
    "encoder_embeds": "encoder cache embeddings used, total",
    "encoder_budget_bytes": "size of the encoder cache in bytes: used, total, and the limit of one step",
    "worker_items_encoded": "items encoded: runs of the encoder",
    "encode_seconds": "time to encode the items of one step",
    "worker_items_loaded": "items not encoded because another worker's output was in the store",
    "worker_tiles": "tiles of items, if they are cached: encoded, or reused because their output was known",
    "worker_outputs_saved": "encoder outputs offered to the store, by outcome",
    "worker_embeds_encoded": "embeddings that workers have computed",
    "modality_encoded": "items encoded, by modality",
    "modality_loaded": "items not encoded, by modality, because another worker's output was in the store",
    "modality_embeds_encoded": "embeddings computed, by modality",
    "modality_embeds_loaded": "embeddings not computed, by modality",
    "worker_tokens_computed": "token positions computed",
    "worker_items_received": "items read in place in the ring, or copied from messages",
    "worker_received_bytes": "bytes read in place in the ring, or copied from messages",
    "saved_ipc_bytes": "bytes read in place that were not sent to the worker",
}
"""The help text of each metric, in the order of the metrics page."""


class EncodedOfModality(StatsRecord, frozen=True):
    """Encoded items and embeddings of one modality in a worker, and those loaded instead."""

    encoded: Annotated[int, of_modality("encoded")] = 0
    loaded: Annotated[int, of_modality("loaded")] = 0
    embeds_encoded: Annotated[int, of_modality("embeds_encoded")] = 0
    embeds_loaded: Annotated[int, of_modality("embeds_loaded")] = 0


class EncodedByModality(StatsRecord, frozen=True):
    image: Annotated[EncodedOfModality, Of("image")] = EncodedOfModality()
    video: Annotated[EncodedOfModality, Of("video")] = EncodedOfModality()
    audio: Annotated[EncodedOfModality, Of("audio")] = EncodedOfModality()


class KVCacheStats(StatsRecord, frozen=True):
    """KV prefix cache, in tokens: `queries` at admission, `hits` not recomputed."""

    queries: Annotated[int, Metric("cache_queries", cache="kv_prefix")] = 0
    hits: Annotated[int, Metric("cache_hits", cache="kv_prefix"), Metric("saved_work", work="prefill")] = 0
    blocks_used: Annotated[Gauge, Metric("kv_blocks", state="used")] = 0
    blocks_cached: Annotated[Gauge, Metric("kv_blocks", state="cached")] = 0
    blocks_total: Annotated[Gauge, Metric("kv_blocks", state="total")] = 0


class EncoderCacheStats(StatsRecord, frozen=True):
    """The engine's records of the encoder cache: one query per item that a request needs; a hit is not encoded again.

    `bytes_*` are `embeds_*` times the width that the workers have measured, 0 until then; `step_bytes` is the limit of
    one step.
    """

    queries: Annotated[int, Metric("cache_queries", cache="encoder")] = 0
    hits: Annotated[int, Metric("cache_hits", cache="encoder"), Metric("saved_work", work="encoding")] = 0
    embeds_used: Annotated[Gauge, Metric("encoder_embeds", state="used")] = 0
    embeds_total: Annotated[Gauge, Metric("encoder_embeds", state="total")] = 0
    bytes_used: Annotated[Gauge, Metric("encoder_budget_bytes", state="used")] = 0
    bytes_total: Annotated[Gauge, Metric("encoder_budget_bytes", state="total")] = 0
    step_bytes: Annotated[Gauge, Metric("encoder_budget_bytes", state="step")] = 0
    evictions: Annotated[int, Metric("cache_evictions", cache="encoder")] = 0


class WorkerStats(StatsRecord, frozen=True):
    """One worker. `prefix_*` count rows of the tensor prefix cache (rank 0 only), of each key; its evictions are
    blocks.
    """

    items_encoded: Annotated[int, Metric("worker_items_encoded")] = 0
    encode_latency: Annotated[Histogram, Metric("encode_seconds")] = Histogram()
    items_loaded: Annotated[int, Metric("worker_items_loaded"), Metric("saved_work", work="encoding_elsewhere")] = 0
    tiles_encoded: Annotated[int, Metric("worker_tiles", outcome="encoded")] = 0
    tiles_reused: Annotated[int, Metric("worker_tiles", outcome="reused")] = 0
    outputs_saved: Annotated[int, Metric("worker_outputs_saved", outcome="saved")] = 0
    outputs_dropped: Annotated[int, Metric("worker_outputs_saved", outcome="dropped")] = 0
    outputs_refused: Annotated[int, Metric("worker_outputs_saved", outcome="refused")] = 0
    embeds_encoded: Annotated[int, Metric("worker_embeds_encoded")] = 0
    tokens_computed: Annotated[int, Metric("worker_tokens_computed")] = 0
    items_viewed: Annotated[int, Metric("worker_items_received", path="viewed")] = 0
    bytes_viewed: Annotated[int, Metric("worker_received_bytes", path="viewed"), Metric("saved_ipc_bytes")] = 0
    items_copied: Annotated[int, Metric("worker_items_received", path="copied")] = 0
    bytes_copied: Annotated[int, Metric("worker_received_bytes", path="copied")] = 0
    encoder_entries: Annotated[Gauge, Metric("cache_entries", cache="encoder")] = 0
    encoder_bytes: Annotated[Gauge, Metric("cache_bytes", cache="encoder")] = 0
    prefix_row_queries: Annotated[int, Metric("cache_queries", cache="tensor_prefix")] = 0
    prefix_row_hits: Annotated[
        int, Metric("cache_hits", cache="tensor_prefix"), Metric("saved_work", work="hidden_states")
    ] = 0
    prefix_bytes: Annotated[Gauge, Metric("cache_bytes", cache="tensor_prefix")] = 0
    prefix_evictions: Annotated[int, Metric("cache_evictions", cache="tensor_prefix")] = 0
    by_modality: EncodedByModality = EncodedByModality()


class EngineStats(StatsRecord, frozen=True):
    steps: Annotated[int, Metric("engine_steps")] = 0
    steps_failed: Annotated[int, Metric("engine_steps_failed")] = 0
    step_latency: Annotated[Histogram, Metric("step_seconds")] = Histogram()
    queue_latency: Annotated[Histogram, Metric("queue_seconds")] = Histogram()
    deaths_in_steps: Annotated[int, Metric("engine_deaths_in_steps")] = 0
    poisonous_requests: Annotated[int, Metric("engine_poisonous_requests")] = 0
    faults: Annotated[int, Metric("faults")] = 0
    requests_running: Annotated[Gauge, Metric("engine_requests", state="running")] = 0
    requests_waiting: Annotated[Gauge, Metric("engine_requests", state="waiting")] = 0
    requests_finished: Annotated[int, Metric("engine_requests_finished")] = 0
    preemptions: Annotated[int, Metric("preemptions")] = 0
    leases_held: Annotated[Gauge, Metric("leases", side="reader")] = 0
    slow_log: SlowLog = SlowLog()
    kv: KVCacheStats = KVCacheStats()
    encoder: EncoderCacheStats = EncoderCacheStats()
    workers: list[WorkerStats] = msgspec.field(default_factory=list)
