"""The paths that are compared, and the rows of a table that they become.

A path "with commit" runs in steps; vLLM has none, so its figure is the same in both rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmark import Row, row
from kv_peers import samplers as sample
from kv_peers.book import REQUEST_BLOCKS, Book
from kv_peers.sides import FOUR_GROUPS, Kind, Ours, Side
from kv_peers.timing import Sampler, compare

NUM_RUNNING = 256
NS_PER = {"ns": 1, "us": 1_000}


@dataclass(frozen=True, slots=True)
class Path:
    """One comparison: `sampler` for both sides, `in_steps` for ours alone; `unit` is what a sample is told in."""

    name: str
    params: str
    unit: str
    sampler: Callable[[Side], Sampler]
    in_steps: Callable[[Side], Sampler] | None = None


PATHS = {
    "lookup": Path("lookup, all found", f"{sample.LONG_HIT:,} blocks", "us", sample.long_hit),
    "cycle": Path(
        "lookup, allocate, publish, free",
        f"{REQUEST_BLOCKS} blocks, evicting",
        "ns per block",
        lambda side: sample.cycle(Book.full(side, sample.NUM_BLOCKS)),
        lambda side: sample.committed_cycle(Book.full(side, sample.NUM_BLOCKS)),
    ),
    "events": Path(
        "lookup, allocate, publish, free, events",
        f"{REQUEST_BLOCKS} blocks, evicting",
        "ns per block",
        lambda side: sample.told_cycle(Book.full(side, sample.NUM_BLOCKS, Kind(has_events=True))),
    ),
    "decode": Path(
        "decode",
        f"{NUM_RUNNING} running, 1 group",
        "ns per request",
        lambda side: sample.decode(Book.full(side, sample.NUM_BLOCKS), NUM_RUNNING),
        lambda side: sample.committed_decode(Book.full(side, sample.NUM_BLOCKS), NUM_RUNNING),
    ),
    "decode_4": Path(
        "decode",
        f"{NUM_RUNNING} running, 4 groups",
        "ns per request",
        lambda side: sample.decode(Book.full(side, sample.NUM_BLOCKS, FOUR_GROUPS), NUM_RUNNING),
        lambda side: sample.committed_decode(Book.full(side, sample.NUM_BLOCKS, FOUR_GROUPS), NUM_RUNNING),
    ),
    "chunked": Path(
        "chunked prefill",
        f"{sample.CHUNKED_TOKENS:,} tokens by {sample.CHUNK_TOKENS:,}",
        "us",
        sample.chunked,
        sample.committed_chunks,
    ),
    "hashing": Path("block hashing, sha256", f"{sample.HASHED_TOKENS:,} tokens", "us", sample.hashing),
    "pool": Path("a new pool", f"{sample.LARGE_POOL:,} blocks", "us", sample.large_pool),
    "start": Path("a new pool at start-up", f"{sample.LARGE_POOL:,} blocks", "us", sample.large_pool_at_start),
    "blocked": Path("blocked head of the line, a step", f"{sample.LONG_TOKENS:,} tokens", "us", sample.blocked),
}


def measure(path: Path, vllm: Side | None, num_rounds: int) -> list[Row]:
    """Return a path's rows: against vLLM where it is there, and what steps add to it."""
    samplers = {"ours": path.sampler(Ours())}
    if path.in_steps is not None:
        samplers["with commit"] = path.in_steps(Ours())
    if vllm is not None:
        samplers["vLLM"] = path.sampler(vllm)
    scale = NS_PER[path.unit[:2]]
    figures = {name: value / scale for name, value in compare(samplers, num_rounds).items()}
    names = {"ours": path.name, "with commit": f"{path.name}, with commit"}
    pairs = [(mine, "vLLM") for mine in names if {mine, "vLLM"} <= figures.keys()]
    if path.in_steps is not None:
        pairs.append(("with commit", "ours"))
    return [
        row(names[mine], path.params, figures[mine], path.unit, peer=_peer_name(peer), peer_value=figures[peer])
        for mine, peer in pairs
    ]


def _peer_name(peer: str) -> str:
    return "ours, without steps" if peer == "ours" else peer
