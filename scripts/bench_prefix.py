"""The tensor prefix store beside the caches by KV slot: decode steps, prefixes, memory.

Times are CPU time of this process, one thread. vllm-omni is measured where it is installed: `make bench-peers`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from functools import partial

import torch

from benchmark import Row, row
from kv_peers.timing import compare
from prefix_peers import shape
from prefix_peers.promises import (
    BOUNDS,
    DECODE,
    DECODE_BY_SLOTS,
    LIMIT,
    PREFIXES,
    PREFIXES_BY_SLOTS,
    READ_BACK,
    RESIDENT,
    RESIDENT_LIMIT_MIB,
)
from prefix_peers.sides import Omni, Side, Slots, Store, StoreReadBack
from ring_peers.memory import anonymous_bytes
from ring_peers.transport import Unavailable
from section_runs import Section, run_sections

ROUNDS = 11
QUICK_ROUNDS = 3
NUM_REQUESTS = (1, 64, 256)
_MIB = 1 << 20


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
    params = f"{shape.PREFIX_REQUESTS} x {shape.PREFIX_TOKENS} rows"
    in_ms = {name: ns / 1e6 for name, ns in figures.items()}
    return _rows(PREFIXES, params, in_ms, "ms") + _rows_by_slots(PREFIXES_BY_SLOTS, params, in_ms, "ms")


def memory(sides: Sequence[Side], _: int) -> list[Row]:
    """Private resident memory that a cache with room for `BUDGET_BYTES` takes at once."""
    figures = {}
    for side in sides:
        gc.collect()
        before = anonymous_bytes()
        cache = side.fresh(shape.BUDGET_BYTES)
        figures[side.name] = (anonymous_bytes() - before) / _MIB
        del cache
    params = f"{shape.BUDGET_BYTES >> 30} GiB"
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
    """Compare the two caches that take the same calls."""
    if Omni.name not in figures:
        return []
    return [row(name, params, figures[Slots.name], unit, peer=Omni.name, peer_value=figures[Omni.name])]


def all_sides() -> list[Side]:
    """Return the sides that there are; say so if vllm-omni is not."""
    sides: list[Side] = [Store(), Slots()]
    try:
        sides.append(Omni())
    except Unavailable as error:
        print(f"rows against vllm-omni are left out: {error}", file=sys.stderr)
    return sides


SECTIONS = {"memory": memory, "decode": decode_steps, "prefixes": prefixes}


def main() -> None:
    torch.set_num_threads(1)

    def sections() -> dict[str, Section]:
        sides = all_sides()
        return {name: partial(section, sides) for name, section in SECTIONS.items()}

    title = "the tensor prefix store against caches by slot, CPU time"
    run_sections(title, list(SECTIONS), sections, BOUNDS, rounds=(ROUNDS, QUICK_ROUNDS))


if __name__ == "__main__":
    main()
