"""Every limit that the service sets on peers' requests.

`LimitsConfig` are limits that an operator may change: section `limits` of the configuration, `--limits.max-clients`.
`LIMITS` has range, unit, meaning and consequence of each, and of the older limits in `ServiceConfig`; a test keeps the
table in `docs/limits.md` equal. A limit is checked before work is spent on a request that exceeds it. Limits of a
format (a message's field, a record's depth) are defined with the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from mmcached.wire.errors import ConfigError

RESERVED_DESCRIPTORS = 64
"""The last descriptor numbers of a process, which peers' connections and nurseries leave free."""

MAX_MESSAGE_FRAMES = 4096
"""The most frames of one message of a client."""

MAX_WAITING_SAVES = 1024
"""Records that wait to be saved in the second level; beyond it the oldest are not saved there."""
MAX_SAVE_AGE_S = 30.0
"""The longest time that a record waits to be saved there."""


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # connections
    max_clients: int = 1024

    # messages
    max_message_mb: int = 256
    max_queued_mb_per_client: int = 64
    max_held_mb: int = 2048
    client_stall_s: float = 30.0

    # shares of one client
    max_requests_per_client: int = 128
    max_claims_per_client: int = 64
    max_prefetches_per_client: int = 256
    claim_timeout_s: float = 120.0
    max_nurseries: int = 256
    flush_interval_s: float = 0.5

    # pictures
    max_decoding_pixels: int = 128_000_000
    image_cpu_s: float = 10.0
    image_memory_mb: int = 1280
    max_open_file_mb: int = 1024

    # clips: videos and sounds
    max_clip_mb: int = 128
    max_clips_per_request: int = 8
    max_clip_s: float = 3600.0
    max_clip_frames: int = 768
    max_frame_pixels: int = 8_847_360
    max_clip_slices_mb: int = 512
    max_clip_items_mb: int = 2048
    clip_cpu_s: float = 60.0
    clip_memory_mb: int = 1280

    # items
    max_inline_items_mb: int = 2048

    # encoder outputs
    max_pinned_mb: int = 2048
    output_wait_s: float = 2.0
    max_inline_output_kb: int = 64
    min_shared_encode_ms: float = 2.0
    remote_encode_s: float = 30.0

    # the second level
    l2_timeout_ms: int = 50
    l2_claim_wait_ms: int = 2000
    max_l2_record_mb: int = 256
    max_l2_waiting_mb: int = 512

    # roles
    max_deaths_per_request: int = 2
    silence_timeout_s: float = 30.0
    not_ready_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: range and unit of its setting, the quantity it `bounds`, the consequence for a peer `beyond` it."""

    low: float
    high: float
    unit: str
    bounds: str
    beyond: str


LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        # ---- connections
        "limits.max_clients": Limit(1, 1 << 16, "clients", "client connections at a time", "`ServiceUnavailable`"),
        # ---- messages
        "limits.max_message_mb": Limit(1, 1 << 16, "MiB", "one message of a client", "`RemoteProtocolError`"),
        "limits.max_held_mb": Limit(
            1,
            1 << 20,
            "MiB",
            "answers waiting for clients, and incomplete messages, of all clients together",
            "`ServiceUnavailable`, disconnected: the client with the most bytes × seconds",
        ),
        "limits.max_queued_mb_per_client": Limit(
            1, 1 << 20, "MiB", "answers waiting for one client to read them", "disconnected"
        ),
        "limits.client_stall_s": Limit(
            0.1,
            86_400,
            "s",
            "time in which a client reads no waiting answer, or sends no more of a message",
            "disconnected",
        ),
        # ---- shares of one client
        "limits.max_requests_per_client": Limit(
            1, 1 << 20, "requests", "open requests of one client", "`ServiceUnavailable`"
        ),
        "limits.max_claims_per_client": Limit(
            1, 1 << 20, "claims", "keys that one client computes or waits for", "`ServiceUnavailable`"
        ),
        "limits.max_prefetches_per_client": Limit(
            0, 4096, "records", "records that one client has prefetched at a time", "not fetched"
        ),
        "limits.claim_timeout_s": Limit(
            0.1, 86_400, "s", "time from a claim to its put", "another waiter gets the claim"
        ),
        "limits.max_nurseries": Limit(
            1,
            1 << 16,
            "nurseries",
            "nurseries at a time, of connected clients and of gone ones",
            "records of gone clients are evicted; otherwise puts travel inline",
        ),
        "limits.flush_interval_s": Limit(0, 86_400, "s", "time from one flush to the next", "waits; one answers all"),
        # ---- pictures
        "limits.max_decoding_pixels": Limit(
            1, 1 << 34, "pixels", "pixels being decoded at a time, all clients together", "waits"
        ),
        "limits.image_cpu_s": Limit(0.1, 3600, "s", "CPU time of one picture", "`ImageTooLarge`"),
        "limits.image_memory_mb": Limit(64, 1 << 20, "MiB", "memory of one decoder process", "`ImageTooLarge`"),
        "limits.max_open_file_mb": Limit(
            1,
            1 << 20,
            "MiB",
            "files of open requests; one client may have half of what the others leave",
            "`ServiceUnavailable`",
        ),
        # ---- clips
        "limits.max_clip_mb": Limit(1, 1 << 16, "MiB", "size of one video or audio file", "`ClipTooLarge`"),
        "limits.max_clips_per_request": Limit(1, 1024, "clips", "videos and sounds of one request", "`InvalidRequest`"),
        "limits.max_clip_s": Limit(
            0.1, 86_400, "s", "seconds of a clip from its beginning to the end", "`ClipTooLarge`"
        ),
        "limits.max_clip_frames": Limit(1, 1 << 16, "frames", "frames taken from one video", "`ClipTooLarge`"),
        "limits.max_frame_pixels": Limit(1, 1 << 32, "pixels", "width × height of a video", "`ClipTooLarge`"),
        "limits.max_clip_slices_mb": Limit(
            1, 1 << 20, "MiB", "encoder input made of one clip, all slices together", "`ClipTooLarge`"
        ),
        "limits.max_clip_items_mb": Limit(
            1,
            1 << 20,
            "MiB",
            "the same of all clips of unsent requests; of a clip being decoded: `limits.max_clip_slices_mb`",
            "waits; the oldest request does not",
        ),
        "limits.clip_cpu_s": Limit(0.1, 3600, "s", "CPU time of one clip", "`ClipTooLarge`"),
        "limits.clip_memory_mb": Limit(64, 1 << 20, "MiB", "memory of one decoder of clips", "`ClipTooLarge`"),
        # ---- items
        "limits.max_inline_items_mb": Limit(
            1, 4096, "MiB", "items of open requests that were sent inline", "waits, or is sent alone"
        ),
        # ---- encoder outputs
        "limits.max_pinned_mb": Limit(
            0,
            1 << 20,
            "MiB",
            "shared memory of a ring that one CUDA worker pins, where it reads repeatedly; 0: none",
            "copied through other memory",
        ),
        "limits.output_wait_s": Limit(
            0,
            86_400,
            "s",
            "time that a request waits while another engine encodes its item, or its output is being saved",
            "encodes it too, or gets it inline",
        ),
        "limits.max_inline_output_kb": Limit(
            0,
            1 << 30,
            "KiB",
            "output of one item, or rows of one step, inline in an answer",
            "sent as a key in the store",
        ),
        "limits.min_shared_encode_ms": Limit(
            0,
            60_000,
            "ms",
            "encoding time of an item from which one of an engine's workers encodes it for all",
            "below it each worker encodes",
        ),
        "limits.remote_encode_s": Limit(
            0.1,
            86_400,
            "s",
            "time in which actors on a Ray cluster encode an item; the first actor has half of it",
            "another actor is called, then `ServiceUnavailable`",
        ),
        # ---- the second level
        "limits.l2_timeout_ms": Limit(1, 600_000, "ms", "time that a request waits for the second level", "a miss"),
        "limits.l2_claim_wait_ms": Limit(
            0,
            600_000,
            "ms",
            "time that a host waits for a record that another host computes, since the last renewal of its claim",
            "computes it too",
        ),
        "limits.max_l2_record_mb": Limit(
            0, 1 << 16, "MiB", "size of one record of the second level", "not saved there"
        ),
        "limits.max_l2_waiting_mb": Limit(
            0, 1 << 20, "MiB", "records that wait to be saved in the second level", "not saved there"
        ),
        # ---- roles
        "limits.max_deaths_per_request": Limit(
            1, 100, "deaths", "worker deaths in steps with a request, the last one with it alone", "`PoisonousRequest`"
        ),
        "limits.silence_timeout_s": Limit(1, 86_400, "s", "time without a heartbeat of a role", "killed and restarted"),
        "limits.not_ready_timeout_s": Limit(
            1, 86_400, "s", "time in which a live engine serves no request", "its group is restarted"
        ),
        # ---- limits that are fields of ServiceConfig itself
        "max_image_bytes": Limit(1, 1 << 32, "bytes", "size of one image file", "`ImageTooLarge`"),
        "max_image_pixels": Limit(1, 1 << 32, "pixels", "width × height of one image", "`ImageTooLarge`"),
        "max_images_per_request": Limit(1, 1024, "images", "images of one request", "`InvalidRequest`"),
        "max_num_requests": Limit(1, 1 << 20, "requests", "open requests of all clients", "`ServiceUnavailable`"),
        "max_model_len": Limit(1, 1 << 24, "tokens", "prompt and answer of one request", "`InvalidRequest`"),
        "mm_processor_max_waiting": Limit(
            1,
            1 << 20,
            "images that wait to be processed; one client may have half of what the others leave",
            "images that wait to be processed; of one client, half of what others leave",
            "`ServiceUnavailable`",
        ),
        "store_max_clients": Limit(1, 512, "clients", "clients that read the store in place", "gets copies"),
        "store_max_object_mb": Limit(
            0, 1 << 20, "MiB", "size of one record of the store (0: a quarter of it)", "not kept"
        ),
        "store_client_quota_gb": Limit(
            0, 4096, "GiB", "records that one client holds under lease (0: a quarter of the store)", "gets copies"
        ),
        "store_tenant_quota_gb": Limit(
            0, 4096, "GiB", "records of one tenant (0: no limit)", "its own oldest records are evicted"
        ),
        "store_l2_tenant_quota_gb": Limit(
            0,
            1 << 20,
            "GiB",
            "records of one tenant that this host saves in the second level within `store_l2_ttl_s` (0: no limit)",
            "not saved there",
        ),
        "ring_reader_quota_gb": Limit(
            0,
            4096,
            "GiB",
            "items pinned for the open requests of one engine (0: no limit)",
            "items travel inline",
        ),
        "mm_shm_cache_max_object_size_mb": Limit(1, 1 << 20, "MiB", "size of one item in the ring", "travels inline"),
    }
)


def check_range(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(field, value, f"must be between {low} and {high}")
