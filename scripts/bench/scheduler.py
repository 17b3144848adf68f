"""Measures the scheduler and its books beside vLLM's: whole steps, encoder cache cycles, their limit, growth.

encoder_miss   an item that must be encoded. The cache is full of entries that nobody refers to, so each new one evicts
               one. Every item belongs to a request of its own, and its content key is a string that nobody has hashed
               before, as it is after a message. The loop of the caller is part of every figure
encoder_hit    an item that is there. "With commit": in steps of several items; vLLM has no such calls, so its figure
               is the same
schedule, commit, step, overhead    see `scheduler_steps`
limits         what the plainest books would take for the two cycles: a dict, a queue and a count; no class, no calls
growth         ours alone: the cost of a cycle as the cache grows

Times are CPU time of this process. vLLM is measured where it is installed: `make bench-peers`. Without it the cost of
steps, the limits, the growth and the engine's overhead are left.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from mmcached.engine.steps.request import Request
from scripts.bench import harness, scheduler_steps
from scripts.bench.harness import STEPS, Bound, Row, Sampler, Section, against_first, beside_peer, compare, cpu_ns, row
from scripts.bench.scheduler_steps import overhead
from scripts.bench.sides import Ours, Side, Vllm

ROUNDS = 21
QUICK_ROUNDS = 5
NUM_ENTRIES = 10_000
PARAMS = f"{NUM_ENTRIES:,} entries"
ITEM_EMBEDS = 16
STEP_ITEMS = 16
NUM_ITEMS = 64 * STEP_ITEMS
UNIT = "us per item"
CACHE_SIZES = (100, 1_000, 10_000, 100_000)
PLAINEST = "the plainest books"


@dataclass(frozen=True, slots=True)
class Path:
    """One comparison, of caches with so many entries: `sampler` for both sides, `in_steps` for ours alone."""

    name: str
    sampler: Callable[[Side, int], Sampler]
    in_steps: Callable[[Side, int], Sampler]


def measure(path: Path, vllm: Side | None, num_rounds: int) -> list[Row]:
    """Return a path's rows: against vLLM where it is there, and what steps add to it."""
    samplers = {"ours": path.sampler(Ours(), NUM_ENTRIES), STEPS: path.in_steps(Ours(), NUM_ENTRIES)}
    if vllm is not None:
        samplers["vLLM"] = path.sampler(vllm, NUM_ENTRIES)
    figures = {name: value / 1_000 for name, value in compare(samplers, num_rounds).items()}
    return beside_peer(path.name, PARAMS, UNIT, figures, "vLLM")


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

    def run(requests: list[Any], by_id: Mapping[int, Any]) -> None:
        for start in range(0, len(requests), STEP_ITEMS):
            step_id = next(step_ids)
            manager.begin_step(step_id)
            for request in requests[start : start + STEP_ITEMS]:
                if not manager.check_and_update_cache(request, 0) and manager.can_allocate(request, 0, ITEM_EMBEDS, 0):
                    manager.allocate(request, 0)
            manager.reserved_inputs(by_id)
            manager.take_freed()
            manager.commit(step_id)
            for request in requests[start : start + STEP_ITEMS]:
                manager.free(request)

    def sample() -> float:
        requests = _requests(side, (new_hash() for _ in range(NUM_ITEMS)))
        by_id = {request.request_id: request for request in requests}
        return per_item(lambda asked: run(asked, by_id), requests)

    return sample


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
            manager.reserved_inputs({})
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
    return [side.request_of_items([mm_hash], ITEM_EMBEDS) for mm_hash in hashes]


def growth(num_rounds: int) -> list[Row]:
    """Ours alone: the cost of a cycle for caches of 100 to 100,000 entries."""
    rows = []
    for path in PATHS.values():
        family = {f"{number:,} entries": path.sampler(Ours(), number) for number in CACHE_SIZES}
        figures = {params: value / 1_000 for params, value in compare(family, num_rounds).items()}
        rows += against_first(f"cost of {path.name}", UNIT, figures)
    return rows


def limit_rows(num_rounds: int) -> list[Row]:
    limits = {"encoder_miss": _miss, "encoder_hit": _hit}
    return [row_ for name, limit in limits.items() for row_ in _against(PATHS[name], limit(), num_rounds)]


def _against(path: Path, limit: Sampler, num_rounds: int) -> list[Row]:
    figures = compare({"ours": path.sampler(Ours(), NUM_ENTRIES), "limit": limit}, num_rounds)
    ours, peer = figures["ours"] / 1_000, figures["limit"] / 1_000
    return [row(path.name, PARAMS, ours, UNIT, peer=PLAINEST, peer_value=peer)]


class _Plain:
    """Entries as [embeddings, references] by content, those without reference in a queue."""

    def __init__(self) -> None:
        self.hashes = [new_hash() for _ in range(NUM_ENTRIES)]
        self.entries = {mm_hash: [ITEM_EMBEDS, 0] for mm_hash in self.hashes}
        self.idle = OrderedDict.fromkeys(self.hashes)
        self.side = Ours()

    def requests(self, hashes: list[str]) -> list[Request]:
        return [self.side.request_of_items([mm_hash], ITEM_EMBEDS) for mm_hash in hashes]


def _miss() -> Sampler:
    plain = _Plain()

    def run(requests: list[Request]) -> None:
        entries, idle, num_free = plain.entries, plain.idle, 0
        held: dict[int, list[int]] = {}
        for request in requests:
            feature = request.features[0]
            mm_hash, num_embeds = feature.mm_hash, feature.num_embeds
            if mm_hash in entries:
                continue
            freed = []
            while num_embeds > num_free:
                oldest, _ = idle.popitem(last=False)
                num_free += entries.pop(oldest)[0]
                freed.append(oldest)
            entries[mm_hash] = held[request.request_id] = [num_embeds, 1]
            num_free -= num_embeds
            entry = held.pop(request.request_id)
            entry[1] -= 1
            if not entry[1]:
                idle[mm_hash] = None

    return lambda: per_item(run, plain.requests([new_hash() for _ in range(NUM_ITEMS)]))


def _hit() -> Sampler:
    plain = _Plain()

    def run(requests: list[Request]) -> None:
        entries, idle = plain.entries, plain.idle
        held: dict[int, list[int]] = {}
        for request in requests:
            mm_hash = request.features[0].mm_hash
            entry = entries[mm_hash]
            if not entry[1]:
                del idle[mm_hash]
            entry[1] += 1
            held[request.request_id] = entry
            entry = held.pop(request.request_id)
            entry[1] -= 1
            if not entry[1]:
                idle[mm_hash] = None

    return lambda: per_item(run, plain.requests(known_hashes(plain.hashes)))


def _reach(path: str, times_faster: float, *, with_commit: bool = False) -> Bound:
    name = PATHS[path].name + (", with commit" if with_commit else "")
    return Bound("reach", name, PARAMS, "vLLM", 1 / times_faster)


BOUNDS = (
    _reach("encoder_miss", 1.5),
    _reach("encoder_hit", 1.5),
    _reach("encoder_miss", 1.3, with_commit=True),
    _reach("encoder_hit", 1.5, with_commit=True),
    *(Bound("try", PATHS[name].name, PARAMS, PLAINEST, 2) for name in PATHS),
)

STEP_BOUNDS = (
    Bound("reach", scheduler_steps.PATHS["schedule"].name, scheduler_steps.PARAMS, "vLLM", 1 / 5),
    Bound("reach", scheduler_steps.PATHS["commit"].name, scheduler_steps.PARAMS, "vLLM", 1 / 3),
    Bound("reach", scheduler_steps.TOLD, scheduler_steps.PARAMS, "vLLM", 1 / 3),
)

SECTIONS = (*PATHS, *scheduler_steps.PATHS, "limits", "growth", "overhead")


def open_sections(undo: ExitStack) -> Mapping[str, Section]:
    vllm = harness.installed(Vllm)
    cycles = {name: partial(measure, path, vllm) for name, path in PATHS.items()}
    steps = {name: partial(scheduler_steps.measure, path, vllm) for name, path in scheduler_steps.PATHS.items()}
    return {**cycles, **steps, "limits": limit_rows, "growth": growth, "overhead": overhead}


if __name__ == "__main__":
    harness.main(
        "scheduler and encoder books against their peers, CPU time",
        SECTIONS,
        open_sections,
        rounds=(ROUNDS, QUICK_ROUNDS),
        bounds=(*BOUNDS, *STEP_BOUNDS),
    )
