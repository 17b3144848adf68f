"""The bounds on the figures of the store and of the cache by slots."""

from __future__ import annotations

from bounds import Bound

DECODE = "decode step, write and hand on"
READ_BACK = "decode step, write and read back"
PREFIXES = "read prefixes"
DECODE_BY_SLOTS = "decode step, the same calls by slots"
PREFIXES_BY_SLOTS = "read prefixes, the same call by slots"
RESIDENT = "resident before first use"
LIMIT = "limit"
RESIDENT_LIMIT_MIB = 16

BOUNDS = (
    Bound("reach", DECODE, "1 request", "vllm-omni", 1.0),
    Bound("reach", DECODE, "64 requests", "vllm-omni", 0.4),
    Bound("reach", DECODE, "256 requests", "vllm-omni", 0.2),
    Bound("reach", READ_BACK, "64 requests", "vllm-omni", 0.4),
    Bound("reach", READ_BACK, "256 requests", "vllm-omni", 0.2),
    Bound("reach", PREFIXES, "64 x 512 rows", "vllm-omni", 0.25),
    Bound("reach", DECODE_BY_SLOTS, "1 request", "vllm-omni", 1.0),
    Bound("reach", DECODE_BY_SLOTS, "64 requests", "vllm-omni", 1.0),
    Bound("reach", DECODE_BY_SLOTS, "256 requests", "vllm-omni", 1.0),
    Bound("reach", PREFIXES_BY_SLOTS, "64 x 512 rows", "vllm-omni", 1.0),
    Bound("reach", RESIDENT, "1 GiB", LIMIT, 1.0),
)
