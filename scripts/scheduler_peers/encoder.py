"""The paths of the encoder cache manager: what an item costs that must be encoded, and what one costs that is there.

The cache is full of entries that nobody refers to, so each new one evicts one. Every item belongs to a request of its
own, and its content key is a string that nobody has hashed before, as it is after a message. The loop of the caller is
part of every figure. With commit: all items of a sample in one step; vLLM has no such calls.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from benchmark import Row, row
from kv_peers.timing import Sampler, compare, cpu_ns
from scheduler_peers.sides import Ours, Side

NUM_ENTRIES = 10_000
ITEM_EMBEDS = 16
STEPS = 64
STEP_ITEMS = 16
CYCLES = STEPS * STEP_ITEMS


@dataclass(frozen=True, slots=True)
class Path:
    """One comparison: `sampler` for both sides, `in_steps` for ours alone; both in nanoseconds per item."""

    name: str
    sampler: Callable[[Side, int], Sampler]
    in_steps: Callable[[Side, int], Sampler]


def measure(path: Path, vllm: Side | None, num_rounds: int) -> list[Row]:
    """Return a path's rows: against vLLM where it is there, and what steps add to it."""
    samplers = {"ours": path.sampler(Ours(), NUM_ENTRIES), "with commit": path.in_steps(Ours(), NUM_ENTRIES)}
    if vllm is not None:
        samplers["vLLM"] = path.sampler(vllm, NUM_ENTRIES)
    figures = {name: value / 1_000 for name, value in compare(samplers, num_rounds).items()}
    names = {"ours": path.name, "with commit": f"{path.name}, with commit"}
    pairs = [(mine, "vLLM") for mine in names if vllm is not None]
    pairs.append(("with commit", "ours"))
    return [
        row(names[mine], PARAMS, figures[mine], "us per item", peer=_PEERS.get(peer, peer), peer_value=figures[peer])
        for mine, peer in pairs
    ]


def miss(side: Side, num_entries: int) -> Sampler:
    """An item that nobody has seen: asked for, allocated (which evicts one), freed; what was evicted is told."""
    manager = full_manager(side, num_entries)

    def run(requests: list[Any]) -> None:
        for request in requests:
            if not manager.check_and_update_cache(request, 0) and manager.can_allocate(request, 0, ITEM_EMBEDS, 0):
                manager.allocate(request, 0)
                manager.free(request)
                manager.get_freed_mm_hashes()

    return lambda: _per_item(run, [side.request([new_hash()], ITEM_EMBEDS) for _ in range(CYCLES)])


def committed_miss(side: Side, num_entries: int) -> Sampler:
    """The same for many items in one step: told before it is sent, freed when it is committed."""
    manager, step_ids = full_manager(side, num_entries), count()

    def run(requests: list[Any]) -> None:
        for step_id, scheduled in zip(step_ids, _steps(requests), strict=False):
            manager.begin_step(step_id)
            for request in scheduled:
                if not manager.check_and_update_cache(request, 0) and manager.can_allocate(request, 0, ITEM_EMBEDS, 0):
                    manager.allocate(request, 0)
            manager.reserved_inputs()
            manager.take_freed()
            manager.commit(step_id)
            for request in scheduled:
                manager.free(request)

    return lambda: _per_item(run, [side.request([new_hash()], ITEM_EMBEDS) for _ in range(CYCLES)])


def hit(side: Side, num_entries: int) -> Sampler:
    """An item that is there, and that nobody refers to: asked for and freed."""
    hashes = [new_hash() for _ in range(num_entries)]
    manager = full_manager(side, num_entries, hashes)

    def run(requests: list[Any]) -> None:
        for request in requests:
            manager.check_and_update_cache(request, 0)
            manager.free(request)

    return lambda: _per_item(run, _known_items(side, hashes))


def committed_hit(side: Side, num_entries: int) -> Sampler:
    """The same for many items in one step."""
    hashes = [new_hash() for _ in range(num_entries)]
    manager, step_ids = full_manager(side, num_entries, hashes), count()

    def run(requests: list[Any]) -> None:
        for step_id, scheduled in zip(step_ids, _steps(requests), strict=False):
            manager.begin_step(step_id)
            for request in scheduled:
                manager.check_and_update_cache(request, 0)
            manager.reserved_inputs()
            manager.take_freed()
            manager.commit(step_id)
            for request in scheduled:
                manager.free(request)

    return lambda: _per_item(run, _known_items(side, hashes))


def full_manager(side: Side, num_entries: int, hashes: list[str] | None = None) -> Any:
    """Return a manager whose cache is full of entries without reference."""
    manager = side.encoder_manager(num_entries * ITEM_EMBEDS)
    for mm_hash in hashes or (new_hash() for _ in range(num_entries)):
        request = side.request([mm_hash], ITEM_EMBEDS)
        manager.allocate(request, 0)
        manager.free(request)
    if manager.num_free_slots or manager.num_freeable_slots != num_entries * ITEM_EMBEDS:
        raise RuntimeError(f"{side.name}: the cache is not full of entries without reference")
    return manager


def new_hash() -> str:
    return secrets.token_hex(32)


def _known_items(side: Side, hashes: list[str]) -> list[Any]:
    """Requests for items drawn from all over the cache; each key is a new string of the same digits."""
    drawn = [hashes[secrets.randbelow(len(hashes))] for _ in range(CYCLES)]
    return [side.request([(mm_hash + " ")[:-1]], ITEM_EMBEDS) for mm_hash in drawn]


def _steps(requests: list[Any]) -> list[list[Any]]:
    return [requests[start : start + STEP_ITEMS] for start in range(0, len(requests), STEP_ITEMS)]


def _per_item(run: Callable[[list[Any]], None], requests: list[Any]) -> float:
    return cpu_ns(lambda: run(requests)) / len(requests)


_PEERS = {"ours": "ours, without steps"}
PARAMS = f"{NUM_ENTRIES:,} entries"
PATHS = {
    "encoder_miss": Path("encoder cache, miss cycle", miss, committed_miss),
    "encoder_hit": Path("encoder cache, hit cycle", hit, committed_hit),
}
