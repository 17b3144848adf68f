"""Ranges of settings, and checks of devices, addresses, URLs, model and encoder; `limits` has the limits on peers."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from mmcached.wire.errors import ConfigError
from mmcached.wire.limits import check_range
from mmcached.wire.model_config import EncoderConfig, ModelConfig
from mmcached.wire.shown_url import shown_url

RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("mm_processor_cache_gb", "tensor_prefix_cache_gb", "store_gb"), (0.0, 4096.0)),
    "max_restarts": (0, 1_000_000),
    "slow_log_ms": (0.0, 86_400_000.0),
    "mm_shm_inline_max_kb": (0, 1 << 20),
    "ring_num_slots": (1, 1 << 20),
    "mm_processor_workers": (0, 256),
    "store_num_slots": (1, 1 << 20),
    "store_nursery_share": (0.0, 0.75),
    "store_l2_ttl_s": (1.0, 31_536_000.0),
    "block_size": (1, 1024),
    "num_kv_blocks": (2, 1 << 24),
    "max_num_seqs": (1, 4096),
    "max_num_batched_tokens": (1, 1 << 20),
    "long_prefill_token_threshold": (0, 1 << 20),
    "encoder_cache_size": (0, 1 << 30),
    "max_num_encoder_input_tokens": (0, 1 << 30),
    "world_size": (0, 16),
    "data_parallel_size": (1, 4096),
    "_api_process_count": (1, 4096),
    "kv_watermark": (0.0, 0.5),
    **{f"{phase}_timeout_s": (0.001, 86_400.0) for phase in ("request", "step", "start", "drain", "probe")},
    "restart_backoff_s": (0.001, 86_400.0),
    **{f"model.{size}": (1, 4096) for size in ("hidden_size", "num_layers", "num_heads", "patch_size")},
    **{f"model.{size}": (1, 4096) for size in ("encoder_width", "encoder_layers", "max_patches_per_image")},
    **{f"model.{size}": (1, 4096) for size in ("audio_frame", "audio_window")},
    "model.chunk_tokens": (1, 1 << 16),
    "kv_events.buffer_steps": (1, 1 << 20),
    "kv_events.buffer_mb": (1, 1 << 16),
    "kv_events.hwm": (1, 1 << 24),
}
"""Ranges of settings that are not limits on peers."""


def check_encoder(encoder: EncoderConfig, step_timeout_s: float, remote_encode_s: float, *, may_encode: bool) -> None:
    """Raise ConfigError if the encoder's settings contradict each other.

    Args:
        remote_encode_s: The longest time that a call of a remote encoder may take.
        may_encode: Whether the service has workers.
    """
    for field, value in (("encoder.kind", encoder.kind), ("encoder.ray_address", encoder.ray_address)):
        if not may_encode and value not in ("reference", ""):
            limit = "must not be set: with world_size = 0 there is only a store, and nothing encodes"
            raise ConfigError(field, value, limit)
    if encoder.caches_tiles and encoder.ray_address:
        limit = "must be false: actors (encoder.ray_address) encode whole pictures"
        raise ConfigError("encoder.caches_tiles", True, limit)
    if encoder.ray_address:
        check_address("encoder.ray_address", encoder.ray_address)
    if encoder.ray_address and remote_encode_s >= step_timeout_s:
        limit = f"must be below step_timeout_s = {step_timeout_s}: a step that takes longer ends its workers"
        raise ConfigError("limits.remote_encode_s", remote_encode_s, limit)
    if not encoder.ray_namespace:
        raise ConfigError("encoder.ray_namespace", "", "must not be empty")


def check_model(
    model: ModelConfig,
    *,
    has_workers: bool,
    block_size: int,
    max_num_batched_tokens: int,
    long_prefill_token_threshold: int,
    disable_chunked_mm_input: bool,
) -> None:
    """Check the settings of the model; of a checkpoint, each chunk of a prompt is computed whole, in one step.

    Raises:
        ConfigError: A setting contradicts the model's; names it, with its limit.
    """
    if model.hidden_size % model.num_heads:
        raise ConfigError("model.hidden_size", model.hidden_size, "must be a multiple of model.num_heads")
    if model.kind == "reference":  # the layers of a checkpoint are checked where it is read
        check_range("model.num_layer_outputs", model.num_layer_outputs, 0, min(model.num_layers, 63))
        return
    if not has_workers:
        raise ConfigError("model.kind", model.kind, "must be reference: with world_size = 0 there is no model")
    if model.mode == "packed":
        return
    chunk_tokens = model.chunk_tokens
    if chunk_tokens % block_size:
        limit = f"must be a multiple of block_size = {block_size}: cached prefixes are whole blocks"
        raise ConfigError("model.chunk_tokens", chunk_tokens, limit)
    if chunk_tokens > max_num_batched_tokens:
        limit = f"must be at most max_num_batched_tokens = {max_num_batched_tokens}: a step computes whole chunks"
        raise ConfigError("model.chunk_tokens", chunk_tokens, limit)
    if 0 < long_prefill_token_threshold < chunk_tokens:
        limit = f"must be 0 or at least model.chunk_tokens = {chunk_tokens}: a step computes whole chunks"
        raise ConfigError("long_prefill_token_threshold", long_prefill_token_threshold, limit)
    if disable_chunked_mm_input:
        limit = "must be false with model.mode aligned: chunks end at fixed places, also within an item"
        raise ConfigError("disable_chunked_mm_input", True, limit)


def check_address(field: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and port.isdecimal() and int(port) < 65_536):
        raise ConfigError(field, address, "must be HOST:PORT, or auto")


def check_device(field: str, device: str) -> None:
    kind, _, index = device.partition(":")
    plain = device in ("auto", "cpu", "cuda")
    if not plain and not (kind == "cuda" and index.isdecimal()):
        raise ConfigError(field, device, "must be auto, cpu, cuda or cuda:<index>")


def check_traces_endpoint(url: str) -> None:
    """Raise ConfigError if this is not the URL of an OTLP/HTTP collector; "" means no collector."""
    if not url:
        return
    field, shown = "otlp_traces_endpoint", shown_url(url)
    try:
        parts = urlsplit(url)
        has_place = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        has_place = False
    if not has_place:
        raise ConfigError(field, shown, "must be http://HOST:PORT/v1/traces, or https://…")
    if "@" in parts.netloc:
        raise ConfigError(field, shown, "must have no password: set OTEL_EXPORTER_OTLP_HEADERS in the environment")
