"""Says what each setting is for, in a line; what a limit bounds says `mmcached.wire.limits`.

`INTERNAL` are those that no operator sets: fields of a vLLM deployment that decide which caches are possible, and
checks for our own tests.
"""

from __future__ import annotations

from mmcached.cli.config.units import unit_of
from mmcached.wire.limits import LIMITS

INTERNAL = frozenset(
    {
        "debug_check_workers",
        "is_multimodal_model",
        "data_parallel_external_lb",
        "_api_process_count",
    }
)

TEXTS = {
    "mm_processor_cache_gb": "processor cache, which lies in the ring beside the store; 0: off",
    "mm_processor_cache_type": "how items reach the workers: shm, lru or processor_only",
    "mm_shm_inline_max_kb": "smaller items stay out of the ring",
    "mm_hasher_algorithm": "digest of files: blake3 or sha256",
    "ring_num_slots": "items that the ring has slots for, beside those of the store",
    "ring_has_checksums": "readers check every view, at about 4 GB/s",
    "mm_processor_workers": "what processes images; 0: one for each core, at most 4",
    "store_gb": "records that clients put; 0: no store",
    "keep_cache": "leave the ring in /dev/shm at the end, for the next service in this run directory",
    "store_l2": "second level behind the store, for several hosts: a URL such as redis://HOST:6379/0; empty: none",
    "store_l2_ttl_s": "how long a record stays in the second level",
    "store_num_slots": "records in the store at a time",
    "store_nursery_share": "of the store: room in which clients lay large records themselves; 0: none",
    "enable_prefix_caching": "keep the KV of prefixes",
    "prefix_caching_hash_algo": "digest of KV blocks: sha256, blake3, xxh3 (not collision-proof), builtin (is sha256)",
    "prefix_caching_hash_seed": "engines with the same one have the same keys",
    "kv_eviction_policy": "which prefix goes first: lru, or segmented_lru (what was not asked for again)",
    "block_size": "tokens of a KV block",
    "num_kv_blocks": "KV blocks, the null block among them",
    "max_num_seqs": "requests that run at a time",
    "max_num_batched_tokens": "tokens of one step",
    "scheduling_policy": "fcfs, or priority: the lowest number first",
    "kv_watermark": "share of the blocks that is left free when a prompt is admitted",
    "long_prefill_token_threshold": "tokens of one prompt in a step that others want; 0: no limit",
    "encoder_cache_scope": "shared by all requests, or per request",
    "encoder_cache_size": "embeddings that the encoder cache holds",
    "max_num_encoder_input_tokens": "embeddings that one step encodes",
    "disable_chunked_mm_input": "an item is never split over two steps",
    "kv_events.enable_kv_cache_events": "publish what the prefix cache holds; prompts can be read from it",
    "kv_events.endpoint": "where, as tcp://HOST:PORT; empty: a socket in the run directory",
    "kv_events.replay_endpoint": "where readers ask for what they missed; empty: a socket in the run directory",
    "kv_events.topic": "topic of the messages",
    "kv_events.buffer_steps": "batches that can be asked for again",
    "kv_events.buffer_mb": "bytes of them, at most",
    "kv_events.hwm": "batches by which a reader may be late before it misses some",
    "kv_events.use_int_block_hashes": "64 bits in the place of each digest, for readers that take numbers only",
    "data_parallel_size": "engines, each with workers of its own",
    "data_parallel_external_lb": "of the deployment",
    "routing_policy": "which engine gets a request: cache_aware, least_loaded or round_robin",
    "world_size": "worker processes of an engine (also --workers, workers); 0: a store alone, without an engine",
    "device": "auto, cpu, cuda or cuda:<index>",
    "enable_tensor_prefix_cache": "keep the hidden states of prefixes",
    "tensor_prefix_cache_gb": "hidden states that rank 0 keeps",
    "encoder.kind": "reference, or hf: the vision part of a checkpoint, for encode; needs the extra [hf]",
    "encoder.path": "the checkpoint's folder: config.json, *.safetensors, preprocessor_config.json",
    "encoder.dtype": "what it computes in: auto (as the checkpoint says), fp32, bf16 or fp16",
    "encoder.device": "where, as `device` has it; auto: where the workers are",
    "encoder.ray_address": "a Ray cluster whose actors encode, as HOST:PORT or auto; empty: the workers do",
    "encoder.ray_namespace": "where the actors live in it",
    "model.seed": "all weights follow from it",
    "model.hidden_size": "width of the reference model",
    "model.num_layers": "its layers",
    "model.num_heads": "its heads; a divisor of the width",
    "model.encoder_width": "width of its encoder",
    "model.encoder_layers": "layers of its encoder",
    "model.patch_size": "pixels of a patch's side",
    "model.max_patches_per_image": "patches of one image, or of a pair of frames; larger ones are scaled down",
    "model.audio_frame": "samples of a sound that become one embedding, at 16,000 a second",
    "model.audio_window": "such frames in one slice of a sound",
    "model.num_layer_outputs": "so many of the first layers give their rows too",
    "request_timeout_s": "deadline of a request that names none",
    "step_timeout_s": "a step that takes longer ends its group",
    "start_timeout_s": "a service, or a role, that takes longer to start has failed",
    "drain_timeout_s": "how long open requests may take to end after SIGTERM",
    "probe_timeout_s": "deadline of a probe of readiness",
    "max_restarts": "deaths of a role within the window before it is given up",
    "restart_window_s": "that window",
    "restart_backoff_s": "wait before the first restart; then twice as long each time",
    "restart_backoff_max_s": "at most so long",
    "http_host": "address of the HTTP port; beyond loopback everybody may ask",
    "http_port": "TCP port for health and metrics; 0: a free one; not set: only the socket in the run directory",
    "slow_log_ms": "a request, put or step that takes longer is a line in the log, and in `status --json`; 0: off",
    "otlp_traces_endpoint": "where spans go, as http://HOST:4318/v1/traces (OTLP/HTTP); needs [otel]; empty: nowhere",
    "log_level": "debug, info, warning or error",
    "log_format": "json, console, or auto: console on a terminal",
    "debug_check_workers": "compare books and workers after each step",
    "is_multimodal_model": "whether there are images, videos or sounds at all",
    "_api_process_count": "of the deployment",
}


def describe(path: str) -> str:
    """Return what a setting is for, with its unit if it has one."""
    limit = LIMITS.get(path)
    if limit is not None:
        text, unit = limit.bounds, limit.unit
    else:
        known_unit = unit_of(path)
        text, unit = TEXTS.get(path, ""), "" if known_unit is None else known_unit.name
    return f"{text} [{unit}]" if unit not in text else text
