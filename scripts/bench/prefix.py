"""Measures the store of hidden states beside the caches by KV slot: decode steps, prefixes, memory.

Times are CPU time of this process, one thread. vllm-omni is measured where it is installed: `make bench-peers`. What
the sides do: `prefix_sides`.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import torch

from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Section, anonymous_bytes, compare, row
from scripts.bench.prefix_sides import (
    BUDGET_BYTES,
    PREFIX_REQUESTS,
    PREFIX_TOKENS,
    Omni,
    OmniManager,
    Side,
    Slots,
    Store,
    StoreReadBack,
)

ROUNDS = 11
QUICK_ROUNDS = 3
NUM_REQUESTS = (1, 64, 256)
_MIB = 1 << 20
DECODE = "decode step, write and hand on"
READ_BACK = "decode step, write and read back"
PREFIXES = "read prefixes"
DECODE_BY_SLOTS = "decode step, the same calls by slots"
PREFIXES_BY_SLOTS = "read prefixes, the same call by slots"
RESIDENT = "resident before first use"
LIMIT = "limit"
RESIDENT_LIMIT_MIB = 16


def decode_steps(sides: Sequence[Side], num_rounds: int) -> list[Row]:
    rows = []
    for num_requests in NUM_REQUESTS:
        playing: list[Side] = [*sides, StoreReadBack()]
        figures = compare({side.name: side.decode(num_requests) for side in playing}, num_rounds)
        in_us = {name: ns / 1e3 for name, ns in figures.items()}
        read_back = in_us.pop(StoreReadBack.name)
        params = f"{num_requests} request{'s' if num_requests > 1 else ''}"
        rows += _rows(DECODE, params, in_us, "us")
        rows += _rows(READ_BACK, params, in_us | {Store.name: read_back}, "us")
        rows += _rows_by_slots(DECODE_BY_SLOTS, params, in_us, "us")
    return rows


def prefixes(sides: Sequence[Side], num_rounds: int) -> list[Row]:
    figures = compare({side.name: side.prefixes() for side in sides}, num_rounds)
    params = f"{PREFIX_REQUESTS} x {PREFIX_TOKENS} rows"
    in_ms = {name: ns / 1e6 for name, ns in figures.items()}
    return _rows(PREFIXES, params, in_ms, "ms") + _rows_by_slots(PREFIXES_BY_SLOTS, params, in_ms, "ms")


def memory(sides: Sequence[Side], _: int) -> list[Row]:
    """Private resident memory that a cache with room for `BUDGET_BYTES` takes at once."""
    figures = {}
    for side in sides:
        gc.collect()
        before = anonymous_bytes()
        cache = side.fresh(BUDGET_BYTES)
        figures[side.name] = (anonymous_bytes() - before) / _MIB
        del cache
    params = f"{BUDGET_BYTES >> 30} GiB"
    limit = row(RESIDENT, params, figures[Store.name], "MiB", peer=LIMIT, peer_value=RESIDENT_LIMIT_MIB)
    # A side that takes nothing is no measure.
    return [
        limit,
        *_rows(RESIDENT, params, {name: mib for name, mib in figures.items() if mib or name == "ours"}, "MiB"),
    ]


def _rows(name: str, params: str, figures: dict[str, float], unit: str) -> list[Row]:
    ours = figures[Store.name]
    return [
        row(name, params, ours, unit, peer=peer, peer_value=value)
        for peer, value in figures.items()
        if peer != Store.name
    ]


def _rows_by_slots(name: str, params: str, figures: dict[str, float], unit: str) -> list[Row]:
    """Compare ours by slots with vllm-omni's: the same calls for 0.22, the same step for 0.30."""
    return [
        row(name, params, figures[Slots.name], unit, peer=peer, peer_value=figures[peer])
        for peer in (Omni.name, OmniManager.name)
        if peer in figures
    ]


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
    Bound("reach", DECODE_BY_SLOTS, "1 request", "vllm-omni 0.30", 0.5),
    Bound("reach", DECODE_BY_SLOTS, "64 requests", "vllm-omni 0.30", 0.1),
    Bound("reach", DECODE_BY_SLOTS, "256 requests", "vllm-omni 0.30", 0.1),
    Bound("reach", RESIDENT, "1 GiB", LIMIT, 1.0),
)
SECTIONS = {"memory": memory, "decode": decode_steps, "prefixes": prefixes}


def open_sections(undo: ExitStack) -> Mapping[str, Section]:
    torch.set_num_threads(1)
    peers = [harness.installed(Omni), harness.installed(OmniManager)]
    sides: list[Side] = [Store(), Slots(), *(peer for peer in peers if peer is not None)]
    return {name: partial(section, sides) for name, section in SECTIONS.items()}


if __name__ == "__main__":
    harness.main(
        "the store of hidden states against caches by slot, CPU time",
        SECTIONS,
        open_sections,
        rounds=(ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
