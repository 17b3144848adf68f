"""The paths of the encoder cache manager: what an item costs that must be encoded, and what one costs that is there.

The cache is full of entries that nobody refers to, so each new one evicts one. Every item belongs to a request of its
own, and its content key is a string that nobody has hashed before, as it is after a message. The loop of the caller is
part of every figure. "With commit": in steps of several items; vLLM has no such calls, so its figure is the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from benchmark import Row, row
from kv_peers.timing import Sampler, compare, cpu_ns
from scheduler_peers.sides import Ours, Side

NUM_ENTRIES = 10_000
PARAMS = f"{NUM_ENTRIES:,} entries"
ITEM_EMBEDS = 16
STEP_ITEMS = 16
NUM_ITEMS = 64 * STEP_ITEMS
UNIT = "us per item"


@dataclass(frozen=True, slots=True)
class Path:
    """One comparison, of caches with so many entries: `sampler` for both sides, `in_steps` for ours alone."""

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
    pairs = [(mine, "vLLM") for mine in names if vllm is not None] + [("with commit", "ours")]
    return [
        row(names[mine], PARAMS, figures[mine], UNIT, peer=_peer_name(peer), peer_value=figures[peer])
        for mine, peer in pairs
    ]


def miss(side: Side, num_entries: int) -> Sampler:
    """An item that nobody has seen: asked for, allocated, freed; what it has evicted is told."""
    manager, _ = full_manager(side, num_entries)

    def run(requests: list[Any]) -> None:
        for request in requests:
            if not manager.check_and_update_cache(request, 0) and manager.can_allocate(request, 0, ITEM_EMBEDS, 0):
                manager.allocate(request, 0)
            manager.free(request)
            manager.get_freed_mm_hashes()

    return lambda: per_item(run, _requests(side, (new_hash() for _ in range(NUM_ITEMS))))


def committed_miss(side: Side, num_entries: int) -> Sampler:
    """The same in steps."""
    manager, _ = full_manager(side, num_entries)
    step_ids = count()

    def run(requests: list[Any]) -> None:
        for start in range(0, len(requests), STEP_ITEMS):
            step_id = next(step_ids)
            manager.begin_step(step_id)
            for request in requests[start : start + STEP_ITEMS]:
                if not manager.check_and_update_cache(request, 0) and manager.can_allocate(request, 0, ITEM_EMBEDS, 0):
                    manager.allocate(request, 0)
            manager.reserved_inputs()
            manager.take_freed()
            manager.commit(step_id)
            for request in requests[start : start + STEP_ITEMS]:
                manager.free(request)

    return lambda: per_item(run, _requests(side, (new_hash() for _ in range(NUM_ITEMS))))


def hit(side: Side, num_entries: int) -> Sampler:
    """An item that is there, and that nobody refers to: asked for and freed."""
    manager, hashes = full_manager(side, num_entries)

    def run(requests: list[Any]) -> None:
        for request in requests:
            manager.check_and_update_cache(request, 0)
            manager.free(request)

    return lambda: per_item(run, _requests(side, known_hashes(hashes)))


def committed_hit(side: Side, num_entries: int) -> Sampler:
    """The same in steps."""
    manager, hashes = full_manager(side, num_entries)
    step_ids = count()

    def run(requests: list[Any]) -> None:
        for start in range(0, len(requests), STEP_ITEMS):
            step_id = next(step_ids)
            manager.begin_step(step_id)
            for request in requests[start : start + STEP_ITEMS]:
                manager.check_and_update_cache(request, 0)
            manager.reserved_inputs()
            manager.take_freed()
            manager.commit(step_id)
            for request in requests[start : start + STEP_ITEMS]:
                manager.free(request)

    return lambda: per_item(run, _requests(side, known_hashes(hashes)))


PATHS = {
    "encoder_miss": Path("encoder cache, miss cycle", miss, committed_miss),
    "encoder_hit": Path("encoder cache, hit cycle", hit, committed_hit),
}


def full_manager(side: Side, num_entries: int) -> tuple[Any, list[str]]:
    """Return a manager whose cache is full of entries without reference, and their contents."""
    manager = side.encoder_manager(num_entries * ITEM_EMBEDS)
    hashes = [new_hash() for _ in range(num_entries)]
    for request in _requests(side, hashes):
        manager.allocate(request, 0)
        manager.free(request)
    if manager.num_free_slots or manager.num_freeable_slots != num_entries * ITEM_EMBEDS:
        raise RuntimeError(f"{side.name}: the cache is not full of entries without reference")
    return manager, hashes


def new_hash() -> str:
    return secrets.token_hex(32)


def known_hashes(hashes: list[str]) -> list[str]:
    """Return contents drawn from all of these, each as a new string of the same digits."""
    return ["".join(secrets.choice(hashes)) for _ in range(NUM_ITEMS)]


def per_item(run: Callable[[list[Any]], None], requests: list[Any]) -> float:
    return cpu_ns(lambda: run(requests)) / len(requests)


def _requests(side: Side, hashes: Iterator[str] | list[str]) -> list[Any]:
    return [side.request([mm_hash], ITEM_EMBEDS) for mm_hash in hashes]


def _peer_name(peer: str) -> str:
    return "ours, without steps" if peer == "ours" else peer
