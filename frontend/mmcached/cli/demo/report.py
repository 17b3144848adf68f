"""Formats the demo's final lines: items encoded once, the cost of the kills, and whether caching changed a bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from mmcached.cli.demo.killing import Survival
from mmcached.cli.demo.workload import Outcome
from mmcached.cli.watch.shown_figures import queries_and_hits
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import WorkerStats
from mmcached.wire.stats import ServiceStats

CACHES = {"processor": "processor", "encoder": "encoder", "kv_prefix": "KV prefix", "tensor_prefix": "hidden states"}
"""Display name of each cache, by the label of the metrics page."""
ENCODED: dict[str, Callable[[WorkerStats], int]] = {
    "photographs": lambda worker: worker.by_modality.image.encoded,
    "film slices": lambda worker: worker.by_modality.video.encoded,
    "sound slices": lambda worker: worker.by_modality.audio.encoded,
}
"""By display name of the items: the number that a worker has encoded."""


@dataclass(frozen=True, slots=True)
class StageFigures:
    """The service's statistics before and after a stage; only differences are shown."""

    before: ServiceStats
    after: ServiceStats

    def by_engine(self, figure: Callable[[WorkerStats], int]) -> list[int]:
        old, new = (
            [sum(map(figure, engine.workers)) for engine in stats.engines] for stats in (self.before, self.after)
        )
        return [after - before for before, after in zip(old, new, strict=True)]

    def encoded_by_engine(self) -> list[int]:
        return self.by_engine(lambda worker: worker.items_encoded)

    def num_loaded(self) -> int:
        return sum(self.by_engine(lambda worker: worker.items_loaded))


def encoded_line(first: StageFigures, num_items: int, config: ServiceConfig) -> str:
    """Return the line on encoded items; it says so if some were encoded more than once.

    Args:
        num_items: Number of different items.
    """
    counts = {name: sum(first.by_engine(figure)) for name, figure in ENCODED.items()}
    items = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    engines = " + ".join(map(str, first.encoded_by_engine()))
    num_again = sum(counts.values()) - num_items
    how, reason, others = "encoded once", "", "engines" if config.world_size == 1 else "workers"
    if num_again > 0:
        how = f"encoded, {num_again} of them again"
        if config.world_size > 1:
            shared = f"{config.limits.min_shared_encode_ms:g} ms (limits.min_shared_encode_ms)"
            reason = f"; each worker encodes by itself what takes it less than {shared}"
    return (
        f"{how}: {items} ({engines} by engine){reason}; read from the store by the other {others}: {first.num_loaded()}"
    )


def hits_line(first: StageFigures) -> str:
    (old_queries, old_hits), (queries, hits) = queries_and_hits(first.before), queries_and_hits(first.after)
    rates = [
        f"{name} {(hits[cache] - old_hits[cache]) / max(1, queries[cache] - old_queries[cache]):.0%}"
        for cache, name in CACHES.items()
    ]
    return f"hits: {', '.join(rates)}"


def saved_line(first: StageFigures, last: ServiceStats) -> str:
    """Return the seconds that hits of the store have saved; empty if none are known.

    The figures of a frontend begin with it, so those of the killed one are added.
    """
    before, after = first.after.store.saved.encoder_us, last.store.saved.encoder_us
    us = after if after >= before else after + before
    return f"{us / 1e6:.1f} s of encoder time saved by the store" if us else ""


def kills_line(killed: StageFigures) -> str:
    encoded = sum(killed.encoded_by_engine())
    return f"after the kills: {encoded} items encoded, {killed.num_loaded()} read from the store"


def store_line(survival: Survival) -> str:
    num = survival.num_records
    return (
        f"frontend dead: {survival.while_dead} of {num} records found; its successor, {survival.seconds:.1f} s later, "
        f"has {survival.afterwards} of {num}"
    )


def differences(on: Outcome, off: Outcome) -> list[str]:
    """Return the differences between two plays as text; empty if every bit is equal."""
    found = []
    if len(on.generations) != len(off.generations) or len(on.embeddings) != len(off.embeddings):
        found.append("the number of answers")
    for index, (a, b) in enumerate(zip(on.generations, off.generations, strict=False)):
        if a.tokens != b.tokens:
            found.append(f"tokens of answer {index}")
        if a.hidden_states is None or b.hidden_states is None or not torch.equal(a.hidden_states, b.hidden_states):
            found.append(f"hidden states of answer {index}")
    for index, (x, y) in enumerate(zip(on.embeddings, off.embeddings, strict=False)):
        if not torch.equal(x, y):
            found.append(f"embedding {index}")
    return found


def proof_line(on: Outcome, different: list[str]) -> str:
    if different:
        return f"DIFFERENT with all four caches off: {', '.join(different[:5])} ({len(different)} in all)"
    tokens = sum(len(generation.tokens) for generation in on.generations)
    rows = sum(len(g.hidden_states) for g in on.generations if g.hidden_states is not None)
    return (
        f"bit-identical before the kills, after them, and with all caches off: {tokens} tokens of "
        f"{len(on.generations)} answers, {len(on.embeddings)} embeddings, {rows:,} rows of hidden states"
    )
