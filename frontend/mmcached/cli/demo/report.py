"""The demo's last words: what each cache saved, what was encoded where, and the line that proves that it changed
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from rich.table import Table

from mmcached.cli.demo.clips import SHOWN
from mmcached.cli.demo.killing import Survival
from mmcached.cli.demo.workload import Outcome
from mmcached.cli.watch.shown_figures import queries_and_hits
from mmcached.wire.stats import ServiceStats, WorkerStats

CACHES = {
    "processor": ("processor (items)", "not preprocessed"),
    "encoder": ("encoder (items)", "not encoded"),
    "kv_prefix": ("KV prefix (tokens)", "not recomputed"),
    "tensor_prefix": ("tensor prefix (rows)", "not recomputed"),
}
"""By the label of the metrics page: the cache's name, and what a hit saves."""
ENCODED: dict[str, Callable[[WorkerStats], int]] = {
    "photographs": lambda worker: worker.by_modality.image.encoded,
    SHOWN["video"]: lambda worker: worker.by_modality.video.encoded,
    SHOWN["audio"]: lambda worker: worker.by_modality.audio.encoded,
}
"""By what was encoded, the figure of a worker."""


def _num_encoded(worker: WorkerStats) -> int:
    return worker.items_encoded


def _num_loaded(worker: WorkerStats) -> int:
    return worker.items_loaded


@dataclass(frozen=True, slots=True)
class Measured:
    """One play of the workload.

    Attributes:
        before, after: statistics around it; only differences are shown.
        seconds: wall time of the play, service already warm.
    """

    outcome: Outcome
    before: ServiceStats
    after: ServiceStats
    seconds: float

    def by_engine(self, figure: Callable[[WorkerStats], int]) -> list[int]:
        """Return by how much a figure of its workers has grown, for each engine."""
        old, new = (
            [sum(map(figure, engine.workers)) for engine in stats.engines] for stats in (self.before, self.after)
        )
        return [after - before for before, after in zip(old, new, strict=True)]


def make_table(on: Measured, off: Measured) -> Table:
    """Return the table: a row for each cache, then time, copies and puts that travelled inline."""
    table = Table(title="what the caches saved", title_justify="left")
    for column in ("cache", "queries", "hits", "hit rate", "work saved"):
        table.add_column(column, justify="left" if column in ("cache", "work saved") else "right", no_wrap=True)
    for name, queries, hits, saved in _cache_rows(on.before, on.after):
        rate = f"{hits / queries:.0%}" if queries else "-"
        table.add_row(name, f"{queries:,}", f"{hits:,}", rate, f"{hits:,} {saved}")
    table.add_section()
    for name, value in _other_rows(on, off):
        table.add_row(name, "", "", "", value)
    return table


def _cache_rows(before: ServiceStats, after: ServiceStats) -> Iterator[tuple[str, int, int, str]]:
    """Yield name, queries, hits and what a hit saves, for each of the four caches."""
    (old_queries, old_hits), (queries, hits) = queries_and_hits(before), queries_and_hits(after)
    for cache, (name, saved) in CACHES.items():
        yield name, queries[cache] - old_queries[cache], hits[cache] - old_hits[cache], saved


def _other_rows(on: Measured, off: Measured) -> list[tuple[str, str]]:
    """Return time with and without caches, bytes copied per item by the writer and by each reader, and inline puts."""
    puts = on.after.ring.puts - on.before.ring.puts
    written = on.after.ring.put_bytes - on.before.ring.put_bytes
    copied = sum(on.by_engine(lambda worker: worker.bytes_copied))
    num_readers = sum(len(engine.workers) for engine in on.after.engines)
    inline = on.after.processor.inline_items - on.before.processor.inline_items
    return [
        ("time, caches on", f"{on.seconds:.2f} s"),
        ("time, caches off", f"{off.seconds:.2f} s ({off.seconds / on.seconds:.1f}x)"),
        ("copied per item: writer", f"{written / max(1, puts):,.0f} B"),
        ("copied per item: reader", f"{copied / max(1, puts * num_readers):,.0f} B ({num_readers} readers)"),
        ("puts inline", f"{inline:,} of {inline + puts:,}"),
    ]


def make_where_table(on: Measured, again: Measured) -> Table:
    """Return the table: what the workers of each engine have encoded, and what they have loaded, before and after the
    kills.
    """
    table = Table("items", title="what was encoded where", title_justify="left")
    for name in (*(f"engine {index}" for index in range(len(on.after.engines))), "together"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, figure in ENCODED.items():
        if any(counts := on.by_engine(figure)):
            table.add_row(f"encoded: {name}", *_and_sum(counts))
    table.add_row("loaded from the store", *_and_sum(on.by_engine(_num_loaded)))
    table.add_section()
    table.add_row("after the kills: encoded", *_and_sum(again.by_engine(_num_encoded)))
    table.add_row("after the kills: loaded from the store", *_and_sum(again.by_engine(_num_loaded)))
    return table


def _and_sum(counts: list[int]) -> list[str]:
    return [*map(str, counts), str(sum(counts))]


def differences(on: Outcome, off: Outcome) -> list[str]:
    """Return what differs between two plays, in words; empty if every bit is the same."""
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
    """Return the sentence that says whether caching changed anything."""
    if different:
        return f"DIFFERENT with all four caches off: {', '.join(different[:5])} ({len(different)} in all)"
    tokens = sum(len(generation.tokens) for generation in on.generations)
    rows = sum(len(g.hidden_states) for g in on.generations if g.hidden_states is not None)
    return (
        f"proof: {tokens} tokens of {len(on.generations)} answers, {len(on.embeddings)} embeddings and {rows:,} rows "
        "of hidden states, before and after the kills, are bit-identical with all four caches off"
    )


def survival_line(survival: Survival) -> str:
    """Return the sentence that says what the death of the frontend has cost."""
    num = survival.num_records
    return (
        f"frontend killed: {survival.while_dead} of {num} stored records found while it was dead, "
        f"{survival.afterwards} of {num} by its successor, {survival.seconds:.1f} s later"
    )


def restart_line(seconds: float, again: Measured) -> str:
    """Return the sentence that says what the death of the engines has cost."""
    encoded, loaded = (sum(again.by_engine(figure)) for figure in (_num_encoded, _num_loaded))
    return f"engines killed: others ready {seconds:.1f} s later; {loaded} items loaded, {encoded} encoded"
