"""The configuration of a service, which every role reads from the run directory.

Fields keep vLLM's names where vLLM has the same setting. Sizes carry their unit in the name. A value out of range is a
`ConfigError` that names field, value and limit; a file with an unknown field is refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import msgspec

from mmcached.wire.config_checks import RANGES, check_device, check_encoder, check_model, check_traces_endpoint
from mmcached.wire.errors import ConfigError
from mmcached.wire.kv_events_config import KVEventsConfig
from mmcached.wire.limits import LIMITS, LimitsConfig, check_range
from mmcached.wire.model_config import EncoderConfig, ModelConfig
from mmcached.wire.shown_url import shown_url
from mmcached.wire.version import PROTOCOL_VERSION, VERSION_FIELD, mismatch

GIB = 1 << 30
MIB = 1 << 20
KIB = 1 << 10

MIN_NURSERY_BYTES = 4 * MIB
"""Smallest size of all nurseries together; a smaller one could not hold large records."""
RESTART_WINDOW_S = 60.0
"""Time in which the deaths of a role are counted for `max_restarts`."""
MAX_ENGINES = 8
"""The largest number of engines of one service."""


class ServiceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings that all roles of one service share.

    Capacities count in the unit of their name (`_kb`: KiB); `encoder_cache_size` and `max_num_encoder_input_tokens`
    count embeddings, `num_kv_blocks` includes the null block.
    """

    # P0's processor cache, and its share of the ring
    mm_processor_cache_gb: float = 0.25
    mm_processor_cache_type: Literal["shm", "lru", "processor_only"] = "shm"
    mm_shm_cache_max_object_size_mb: int = 64
    mm_shm_inline_max_kb: int = 16
    mm_hasher_algorithm: Literal["blake3", "sha256"] = "blake3"
    ring_num_slots: int = 4096
    ring_reader_quota_gb: float = 0.0
    ring_has_checksums: bool = False

    # decoder processes for images; 0: one per core, at most 4
    mm_processor_workers: int = 0
    mm_processor_max_waiting: int = 512

    # the store for clients' records; 0 = none. A max_object or client_quota of 0 is a quarter of the store
    store_gb: float = 0.25
    store_max_object_mb: int = 0
    store_num_slots: int = 4096
    store_max_clients: int = 256
    store_client_quota_gb: float = 0.0
    store_tenant_quota_gb: float = 0.0
    store_l2_tenant_quota_gb: float = 0.0
    # share of the store for nurseries, where clients write large records in place; 0 = none
    store_nursery_share: float = 0.25

    # shared server of several hosts' stores (redis://…; "" = none), lifetime of records there, warm-up of a new store
    store_l2: str = ""
    store_l2_ttl_s: float = 86_400.0
    store_warm_up: bool = False

    # leave the ring where it is when the service ends: the next one in this run directory goes on with them
    keep_cache: bool = False

    # limits on requests
    max_image_bytes: int = 64 * MIB
    max_image_pixels: int = 64_000_000
    max_images_per_request: int = 16
    max_num_requests: int = 256
    max_model_len: int = 8192

    # scheduling and KV cache
    enable_prefix_caching: bool = True
    # "xxh3" is not collision-proof, and warns; "builtin" warns and is sha256. Without a seed "xxh3" has different keys
    # in each engine, the other algorithms the same everywhere
    prefix_caching_hash_algo: Literal["sha256", "blake3", "xxh3", "builtin"] = "sha256"
    prefix_caching_hash_seed: str = ""
    block_size: int = 16
    num_kv_blocks: int = 2048
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    # a prompt is admitted if all of it fits and the share `kv_watermark` of the blocks is left for running requests
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    kv_watermark: float = 0.01
    long_prefill_token_threshold: int = 0
    encoder_cache_scope: Literal["shared", "request"] = "shared"
    encoder_cache_size: int = 2048
    max_num_encoder_input_tokens: int = 512
    disable_chunked_mm_input: bool = False

    # limits on one client, message, image or turn of a loop
    limits: LimitsConfig = LimitsConfig()

    kv_events: KVEventsConfig = KVEventsConfig()

    # engines, each with its own workers; behind a balancer of the deployment (`data_parallel_external_lb`) each engine
    # has a service of its own
    data_parallel_size: int = 1
    data_parallel_external_lb: bool = False
    routing_policy: Literal["cache_aware", "least_loaded", "round_robin"] = "cache_aware"

    # workers per engine; 0 = no engine either: the service is only a store, and refuses requests to a model
    world_size: int = 2
    device: str = "auto"
    enable_tensor_prefix_cache: bool = True
    # capacity for rows that a prefix hit skips, at rank 0; when full, hits of requests that want rows become shorter
    tensor_prefix_cache_gb: float = 0.25
    model: ModelConfig = ModelConfig()
    encoder: EncoderConfig = EncoderConfig()

    # deadlines
    request_timeout_s: float = 60.0
    step_timeout_s: float = 60.0
    start_timeout_s: float = 120.0
    drain_timeout_s: float = 25.0
    probe_timeout_s: float = 1.0

    # restarts of a dead role: the supervisor waits `restart_backoff_s`, twice as long each time, up to 25 times
    # as long; gives up after `max_restarts` within a minute
    max_restarts: int = 5
    restart_backoff_s: float = 0.2

    # monitoring: HTTP at a socket in the run directory, and at a TCP port if one is given; 0 takes a free port
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    log_format: Literal["auto", "console", "json"] = "auto"
    slow_log_ms: float = 0.0
    # URL of an OTLP/HTTP collector for spans, as http://127.0.0.1:4318/v1/traces; "" = none
    otlp_traces_endpoint: str = ""

    # after every step compare the content of the workers' encoder caches with the engine's records, and end the engine
    # on a difference; costs a list of all keys per worker and step
    debug_check_workers: bool = False

    # fields of a vLLM deployment that decide which caches are possible
    is_multimodal_model: bool = True
    _api_process_count: int = 1

    def __post_init__(self) -> None:
        for field, (low, high) in RANGES.items():
            check_range(field, attrgetter(field)(self), low, high)
        for field, bounds in LIMITS.items():
            check_range(field, attrgetter(field)(self), bounds.low, bounds.high)
        if self.http_port is not None:
            check_range("http_port", self.http_port, 0, 65_535)
        if self.max_model_len > (self.num_kv_blocks - 1) * self.block_size:
            num_tokens = (self.num_kv_blocks - 1) * self.block_size
            raise ConfigError("max_model_len", self.max_model_len, f"the KV pool holds {num_tokens} tokens")
        if not self.has_workers and not self.store_data_bytes:
            raise ConfigError(
                "store_gb", self.store_gb, "must be more than 0: with world_size = 0 there is only a store"
            )
        if self.store_l2 and not self.store_data_bytes:
            raise ConfigError("store_gb", self.store_gb, "must be more than 0: store_l2 is the second level of a store")
        check_device("device", self.device)
        check_device("encoder.device", self.encoder.device)
        check_traces_endpoint(self.otlp_traces_endpoint)
        check_range("data_parallel_size", self.num_engines, 0, MAX_ENGINES)
        if self.routes_by_content and self.prefix_caching_hash_algo == "xxh3" and not self.prefix_caching_hash_seed:
            limit = "must be set: without it engines have different xxh3 digests, and cache_aware routing knows none"
            raise ConfigError("prefix_caching_hash_seed", "", limit)
        check_encoder(self.encoder, self.step_timeout_s, self.limits.remote_encode_s, may_encode=self.has_workers)
        check_model(
            self.model,
            has_workers=self.has_workers,
            block_size=self.block_size,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            disable_chunked_mm_input=self.disable_chunked_mm_input,
        )
        self.kv_events.check(self.num_engines)

    @property
    def has_workers(self) -> bool:
        """Whether the service computes; without workers it has no engine, and is only a store."""
        return self.world_size > 0

    @property
    def num_engines(self) -> int:
        """Number of engines of this service, with `world_size` workers each."""
        if not self.has_workers:
            return 0
        return 1 if self.data_parallel_external_lb else self.data_parallel_size

    @property
    def routes_by_content(self) -> bool:
        """Whether engines report the content of their caches to the frontend."""
        return self.num_engines > 1 and self.routing_policy == "cache_aware"

    @property
    def processor_cache_bytes(self) -> int:
        """Capacity of the processor cache in bytes; 0 = off."""
        return int(self.mm_processor_cache_gb * GIB) if self.has_workers else 0

    @property
    def ring_data_bytes(self) -> int:
        """Room in the ring for processed items, beside the store, in bytes; 0 = every item travels inline."""
        return self.processor_cache_bytes if self.mm_processor_cache_type == "shm" and self.is_multimodal_model else 0

    @property
    def max_object_bytes(self) -> int:
        return min(self.mm_shm_cache_max_object_size_mb * MIB, self.ring_data_bytes)

    @property
    def inline_below_bytes(self) -> int:
        """Bytes of tensors below which an item travels inline, although there is a ring."""
        return self.mm_shm_inline_max_kb * KIB

    @property
    def processor_workers(self) -> int:
        return self.mm_processor_workers or min(4, len(os.sched_getaffinity(0)))

    @property
    def tensor_prefix_cache_bytes(self) -> int:
        """Capacity of rank 0's prefix rows in bytes; 0 = off."""
        is_of_use = self.enable_tensor_prefix_cache and self.enable_prefix_caching
        return int(self.tensor_prefix_cache_gb * GIB) if is_of_use else 0

    @property
    def ring_reader_quota_bytes(self) -> int | None:
        """The most bytes of items kept in the ring for one engine's open requests; None for no limit."""
        return int(self.ring_reader_quota_gb * GIB) or None

    @property
    def store_data_bytes(self) -> int:
        """Capacity for clients' records in bytes; 0 = no store."""
        return int(self.store_gb * GIB)

    @property
    def store_max_object_bytes(self) -> int:
        return min(self.store_max_object_mb * MIB or self.store_data_bytes // 4, self.store_main_bytes)

    @property
    def store_nursery_bytes(self) -> int:
        """Capacity of all nurseries together in bytes; 0 = no nurseries, as in a store that is too small."""
        share = int(self.store_data_bytes * self.store_nursery_share)
        return share if share >= MIN_NURSERY_BYTES else 0

    @property
    def store_main_bytes(self) -> int:
        """Capacity for clients' records in the ring itself, in bytes."""
        return self.store_data_bytes - self.store_nursery_bytes

    @property
    def shares_encoder_outputs(self) -> bool:
        """Whether encoder outputs are kept in the store; False if they depend on more than the item."""
        return self.has_workers and self.store_data_bytes > 0 and self.encoder_cache_scope == "shared"

    @property
    def store_client_quota_bytes(self) -> int:
        """The most bytes that one client holds under lease at a time; further records are sent inline."""
        return max(1, int(self.store_client_quota_gb * GIB) or self.store_data_bytes // 4)

    @property
    def store_tenant_quota_bytes(self) -> int | None:
        """The most bytes of one tenant's records; None for no limit."""
        return int(self.store_tenant_quota_gb * GIB) or None

    @property
    def store_l2_tenant_quota_bytes(self) -> int | None:
        """The most bytes saved in the second level for one tenant within `store_l2_ttl_s`; None for no limit."""
        return int(self.store_l2_tenant_quota_gb * GIB) or None

    def digest(self) -> str:
        """Return 16 hex digits that two processes compare to check that their configurations are equal."""
        return hashlib.sha256(msgspec.json.encode(self.shown())).hexdigest()[:16]

    def shown(self) -> ServiceConfig:
        """Return a copy without passwords, for display."""
        return msgspec.structs.replace(self, store_l2=shown_url(self.store_l2))

    def save(self, path: Path) -> None:
        fields = {VERSION_FIELD: PROTOCOL_VERSION, **msgspec.to_builtins(self)}
        path.write_bytes(msgspec.json.format(msgspec.json.encode(fields)))
        path.chmod(0o600)

    @classmethod
    def load(cls, path: Path) -> ServiceConfig:
        """Read a configuration that `save` wrote.

        Raises:
            ConfigError: The file is missing, of another version, not JSON, or has an unknown field or an invalid value.
        """
        try:
            fields = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
            # Checked first, because fields of another version would be reported as unknown.
            version = fields.pop(VERSION_FIELD, None)
            if version != PROTOCOL_VERSION:
                raise ConfigError(VERSION_FIELD, str(version), f"in {path}: {mismatch(version)}")
            return cls.from_fields(fields)
        except OSError as error:
            raise ConfigError("config", str(path), f"cannot be read: {error.strerror}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConfigError("config", str(path), str(error)) from error

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> ServiceConfig:
        """Return the configuration from plain values, as JSON has them.

        Raises:
            ConfigError: A value is invalid.
            msgspec.ValidationError: A field is unknown, or a value has the wrong type.
        """
        try:
            return msgspec.convert(fields, cls)
        except msgspec.ValidationError as refused:  # msgspec's wrapper of every ValueError
            if isinstance(refused.__cause__, ConfigError):
                raise refused.__cause__ from None
            raise
