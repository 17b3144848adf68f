"""One-line descriptions of the settings; limits are described in `mmcached.wire.limits`.

`INTERNAL` settings are not set by operators: fields of a vLLM deployment that decide which caches are possible, and
checks for mmcached's own tests.
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
    "mm_processor_cache_gb": "capacity of the processor cache, in the ring beside the store; 0: off",
    "mm_processor_cache_type": "how items reach the workers: shm, lru or processor_only",
    "mm_shm_inline_max_kb": "items smaller than this travel inline, not through the ring",
    "mm_hasher_algorithm": "digest of files: blake3 or sha256",
    "ring_num_slots": "slots of the ring for items, beside those of the store",
    "ring_has_checksums": "readers check every view, at about 4 GB/s",
    "mm_processor_workers": "decoder processes for images; 0: one per core, at most 4",
    "store_gb": "capacity for clients' records; 0: no store",
    "keep_cache": "keep the ring in /dev/shm at the end, for the next service in this run directory",
    "store_l2": "second level behind the store, for several hosts: a URL such as redis://HOST:6379/0; empty: none",
    "store_l2_ttl_s": "lifetime of a record in the second level",
    "store_warm_up": "fetch into an empty store what other hosts with this option have found last, and tell them",
    "store_num_slots": "records in the store at a time",
    "store_nursery_share": "share of the store for nurseries, where clients write large records in place; 0: none",
    "enable_prefix_caching": "cache the KV blocks of prefixes",
    "prefix_caching_hash_algo": "digest of KV blocks: sha256, blake3, xxh3 (not collision-proof), builtin (is sha256)",
    "prefix_caching_hash_seed": "engines with the same seed have the same keys",
    "block_size": "tokens per KV block",
    "num_kv_blocks": "KV blocks, including the null block",
    "max_num_seqs": "running requests at a time",
    "max_num_batched_tokens": "tokens of one step",
    "scheduling_policy": "fcfs, or priority: the lowest number first",
    "kv_watermark": "share of the blocks that must stay free when a prompt is admitted",
    "long_prefill_token_threshold": "tokens of one prompt in a step that other requests need; 0: no limit",
    "encoder_cache_scope": "shared by all requests, or per request",
    "encoder_cache_size": "capacity of the encoder cache in embeddings",
    "max_num_encoder_input_tokens": "embeddings that one step encodes",
    "disable_chunked_mm_input": "an item is never split over two steps",
    "kv_events.enable_kv_cache_events": "publish the content of the prefix cache; the events reveal prompts",
    "kv_events.endpoint": "address of the events, as tcp://HOST:PORT; empty: a socket in the run directory",
    "kv_events.replay_endpoint": "address for replays of missed events; empty: a socket in the run directory",
    "kv_events.topic": "topic of the messages",
    "kv_events.buffer_steps": "batches kept for replay",
    "kv_events.buffer_mb": "the same in bytes",
    "kv_events.hwm": "batches by which a reader may be late before it misses some",
    "kv_events.use_int_block_hashes": "64 bits instead of each digest, for readers that expect numbers",
    "data_parallel_size": "engines, each with its own workers",
    "data_parallel_external_lb": "vLLM deployment: a balancer outside, one engine per service",
    "routing_policy": "choice of the engine for a request: cache_aware, least_loaded or round_robin",
    "world_size": "worker processes per engine (also --workers, workers); 0: only a store, without an engine",
    "device": "auto, cpu, cuda or cuda:<index>",
    "enable_tensor_prefix_cache": "cache the hidden states of prefixes",
    "tensor_prefix_cache_gb": "capacity of rank 0's cache of hidden states",
    "encoder.kind": "reference, or hf: the vision part of a checkpoint, for encode; needs the extra [hf]",
    "encoder.path": "the checkpoint's folder: config.json, *.safetensors, preprocessor_config.json",
    "encoder.dtype": "dtype of the encoder's computation: auto (the checkpoint's), fp32, bf16 or fp16",
    "encoder.device": "device of the encoder, like `device`; auto: the workers' device",
    "encoder.ray_address": "Ray cluster whose actors encode, as HOST:PORT or auto; empty: the workers encode",
    "encoder.ray_namespace": "Ray namespace of the actors",
    "encoder.caches_tiles": "encode each tile of a picture alone, and find its output in the store when it comes again",
    "model.kind": "reference, or hf: the language model of a checkpoint; needs the extra [hf]",
    "model.path": "the checkpoint's folder: config.json, *.safetensors, tokenizer.json",
    "model.dtype": "dtype of the checkpoint's computation: auto (the checkpoint's), fp32, bf16 or fp16",
    "model.mode": "aligned: a checkpoint's results do not depend on caches, bit for bit; packed: faster, in batches",
    "model.chunk_tokens": "in the mode aligned, chunks of a checkpoint's prompts begin at multiples of so many tokens",
    "model.seed": "seed of all weights of the reference model",
    "model.hidden_size": "width of the reference model",
    "model.num_layers": "layers of the reference model",
    "model.num_heads": "attention heads of the reference model; a divisor of the width",
    "model.encoder_width": "width of the reference encoder",
    "model.encoder_layers": "layers of the reference encoder",
    "model.patch_size": "side of a patch in pixels",
    "model.max_patches_per_image": "patches of one image, or of a pair of frames; larger ones are scaled down",
    "model.audio_frame": "samples of a sound per embedding, at 16,000 a second",
    "model.audio_window": "audio frames (model.audio_frame samples each) per slice of a sound",
    "model.num_layer_outputs": "number of first layers whose rows are returned too",
    "model.row_modules": "modules of a checkpoint whose rows are returned too, like layers.3.mlp,layers.5.self_attn",
    "request_timeout_s": "deadline of a request without one of its own",
    "step_timeout_s": "a longer step ends its group of engine and workers",
    "start_timeout_s": "a service or role that takes longer to start has failed",
    "drain_timeout_s": "time for open requests to end after SIGTERM",
    "probe_timeout_s": "deadline of a readiness probe",
    "max_restarts": "deaths of a role within a minute before it is given up",
    "restart_backoff_s": "wait before the first restart of a role; doubles with each one, up to 25 times",
    "http_host": "address of the HTTP port; beyond loopback every host can read it",
    "http_port": "TCP port for health and metrics; 0: a free one; not set: only the socket in the run directory",
    "slow_log_ms": "slower requests, puts and steps are logged, and listed in `status --json`; 0: off",
    "otlp_traces_endpoint": "OTLP/HTTP URL for spans, as http://HOST:4318/v1/traces; needs [otel]; empty: none",
    "log_level": "debug, info, warning or error",
    "log_format": "json, console, or auto: console on a terminal",
    "debug_check_workers": "compare the engine's records with the workers' caches after each step",
    "is_multimodal_model": "vLLM deployment: whether there are images, videos or sounds at all",
    "_api_process_count": "vLLM deployment: number of API processes",
}


def describe(path: str) -> str:
    """Return a setting's description, with its unit if it has one."""
    limit = LIMITS.get(path)
    if limit is not None:
        text, unit = limit.bounds, limit.unit
    else:
        known_unit = unit_of(path)
        text, unit = TEXTS.get(path, ""), "" if known_unit is None else known_unit.name
    return f"{text} [{unit}]" if unit not in text else text
