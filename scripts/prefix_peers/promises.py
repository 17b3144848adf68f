"""The bounds on the store's figures."""

from __future__ import annotations

from bounds import Bound

DECODE = "decode step, write and hand on"
READ_BACK = "decode step, write and read back"
PREFIXES = "read prefixes"
RESIDENT = "resident before first use"
LIMIT = "limit"
RESIDENT_LIMIT_MIB = 16

BOUNDS = (
    Bound("reach", DECODE, "64 requests", "vllm-omni", 0.4),
    Bound("reach", DECODE, "256 requests", "vllm-omni", 0.2),
    Bound("reach", READ_BACK, "64 requests", "vllm-omni", 0.4),
    Bound("reach", READ_BACK, "256 requests", "vllm-omni", 0.2),
    Bound("reach", PREFIXES, "64 x 512 rows", "vllm-omni", 0.25),
    Bound("reach", RESIDENT, "1 GiB", LIMIT, 1.0),
)
