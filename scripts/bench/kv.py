"""Measures the KV cache manager beside vLLM's: lookups, allocation, decoding, hashing, hit rates, growth.

paths      what is compared, each a sampler of CPU time of this process. A path "with commit" runs in steps; vLLM has
           none, so its figure is the same in both rows
kinds      two of the paths for each kind of layer beside full attention
limits     what the plainest loop in Python takes for the same result: no class, no books, one C call per block
growth     ours alone: pools of 1k to 1M blocks, all full of published content, and 1 to 1,024 running requests
hits       the share of prompt tokens that small pools find (`kv_hits`)

Digests are drawn, not computed, wherever hashing is not the subject: a manager sees only their values. vLLM is measured
where it is installed: `make bench-peers`. Without it the limits, the cost of steps, the growth, and hit rates beside
those of the plain rule are left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from mmcached.engine.kv.config import ChunkedLocalAttentionSpec, CrossAttentionSpec, FullAttentionSpec, MambaSpec
from scripts.bench import harness, kv_hits
from scripts.bench.harness import STEPS, Bound, Row, Sampler, Section, against_first, beside_peer, compare, cpu_ns, row
from scripts.bench.kv_samplers import (
    CHUNK_TOKENS,
    CHUNKED_TOKENS,
    HASHED_TOKENS,
    LARGE_POOL,
    LONG_HIT,
    LONG_TOKENS,
    NUM_BLOCKS,
    REQUEST_BLOCKS,
    Book,
    blocked,
    chunked,
    committed_chunks,
    committed_cycle,
    committed_decode,
    cycle,
    decode,
    dict_alone,
    hashing,
    large_pool,
    large_pool_at_start,
    long_hit,
    packed_tokens,
    told_cycle,
)
from scripts.bench.sides import BLOCK_SIZE, FOUR_GROUPS, WINDOW, Kind, Ours, Side, Vllm

ROUNDS = 11
QUICK_ROUNDS = 3
NUM_RUNNING = 256
NS_PER = {"ns": 1, "us": 1_000}

PACKED_TOKENS = "packed tokens"

POOL_SIZES = (1_000, 10_000, 100_000, 1_000_000)
RUNNING = (1, 4, 16, 64, 256, 1_024)
USUAL_BLOCKS = 100_000
USUAL_RUNNING = 16

PACKED_LOOP_SLACK = 1.15


@dataclass(frozen=True, slots=True)
class Path:
    """One comparison: `sampler` for both sides, `in_steps` for ours alone; `unit` is what a sample is told in."""

    name: str
    params: str
    unit: str
    sampler: Callable[[Side], Sampler]
    in_steps: Callable[[Side], Sampler] | None = None


PATHS = {
    "lookup": Path("lookup, all found", f"{LONG_HIT:,} blocks", "us", long_hit),
    "cycle": Path(
        "lookup, allocate, publish, free",
        f"{REQUEST_BLOCKS} blocks, evicting",
        "ns per block",
        lambda side: cycle(Book.full(side, NUM_BLOCKS)),
        lambda side: committed_cycle(Book.full(side, NUM_BLOCKS)),
    ),
    "events": Path(
        "lookup, allocate, publish, free, events",
        f"{REQUEST_BLOCKS} blocks, evicting",
        "ns per block",
        lambda side: told_cycle(Book.full(side, NUM_BLOCKS, Kind(has_events=True))),
    ),
    "decode": Path(
        "decode",
        f"{NUM_RUNNING} running, 1 group",
        "ns per request",
        lambda side: decode(Book.full(side, NUM_BLOCKS), NUM_RUNNING),
        lambda side: committed_decode(Book.full(side, NUM_BLOCKS), NUM_RUNNING),
    ),
    "decode_4": Path(
        "decode",
        f"{NUM_RUNNING} running, 4 groups",
        "ns per request",
        lambda side: decode(Book.full(side, NUM_BLOCKS, FOUR_GROUPS), NUM_RUNNING),
        lambda side: committed_decode(Book.full(side, NUM_BLOCKS, FOUR_GROUPS), NUM_RUNNING),
    ),
    "chunked": Path(
        "chunked prefill",
        f"{CHUNKED_TOKENS:,} tokens by {CHUNK_TOKENS:,}",
        "us",
        chunked,
        committed_chunks,
    ),
    "hashing": Path("block hashing, sha256", f"{HASHED_TOKENS:,} tokens", "us", hashing),
    "pool": Path("a new pool", f"{LARGE_POOL:,} blocks", "us", large_pool),
    "start": Path("a new pool at start-up", f"{LARGE_POOL:,} blocks", "us", large_pool_at_start),
    "blocked": Path("blocked head of the line, a step", f"{LONG_TOKENS:,} tokens", "us", blocked),
}


KINDS = {
    "chunks": Kind((FullAttentionSpec(BLOCK_SIZE), ChunkedLocalAttentionSpec(BLOCK_SIZE, WINDOW))),
    "states": Kind((FullAttentionSpec(BLOCK_SIZE), MambaSpec(BLOCK_SIZE))),
    "cross-attention": Kind((FullAttentionSpec(BLOCK_SIZE), CrossAttentionSpec(BLOCK_SIZE)), num_encoder_tokens=WINDOW),
}
"""A group with full attention and one of another kind."""


def _paths_of(name: str, kind: Kind) -> tuple[Path, Path]:
    return (
        Path(
            f"cycle, full attention and {name}",
            f"{REQUEST_BLOCKS} blocks, evicting",
            "ns per block",
            lambda side: cycle(Book.full(side, NUM_BLOCKS, kind)),
            lambda side: committed_cycle(Book.full(side, NUM_BLOCKS, kind)),
        ),
        Path(
            f"decode, full attention and {name}",
            f"{NUM_RUNNING} running",
            "ns per request",
            lambda side: decode(Book.full(side, NUM_BLOCKS, kind), NUM_RUNNING),
            lambda side: committed_decode(Book.full(side, NUM_BLOCKS, kind), NUM_RUNNING),
        ),
    )


PATHS_OF_KINDS = [path for name, kind in KINDS.items() for path in _paths_of(name, kind)]


def kind_rows(vllm: Side | None, num_rounds: int) -> list[Row]:
    return [each for path in PATHS_OF_KINDS for each in measure(path, vllm, num_rounds)]


def measure(path: Path, vllm: Side | None, num_rounds: int) -> list[Row]:
    """Return a path's rows: against vLLM where it is there, and what steps add to it."""
    samplers = {"ours": path.sampler(Ours())}
    if path.in_steps is not None:
        samplers[STEPS] = path.in_steps(Ours())
    if vllm is not None:
        samplers["vLLM"] = path.sampler(vllm)
    scale = NS_PER[path.unit[:2]]
    figures = {name: value / scale for name, value in compare(samplers, num_rounds).items()}
    return beside_peer(path.name, path.params, path.unit, figures, "vLLM")


def limit_rows(num_rounds: int) -> list[Row]:
    """Hashing against SHA-256 over packed tokens, a lookup against a dict alone."""
    return [
        _against(PATHS["hashing"], PACKED_TOKENS, packed_tokens(), num_rounds),
        _against(PATHS["lookup"], "a dict alone", dict_alone(), num_rounds),
    ]


def _against(path: Path, peer: str, limit: Sampler, num_rounds: int) -> Row:
    figures = compare({"ours": path.sampler(Ours()), "limit": limit}, num_rounds)
    return row(path.name, path.params, figures["ours"] / 1000, "us", peer=peer, peer_value=figures["limit"] / 1000)


def growth(num_rounds: int) -> list[Row]:
    return [*_by_blocks(num_rounds), *_by_running(num_rounds)]


def _by_blocks(num_rounds: int) -> list[Row]:
    books = {f"{number:,} blocks": Book.full(Ours(), number) for number in POOL_SIZES}
    # Lookups come first, because cycles evict what they find.
    families = {
        "lookup": ("ns per block", {params: _lookup(book) for params, book in books.items()}),
        "statistics": ("ns", {params: _statistics(book) for params, book in books.items()}),
        "cycle": ("ns per block", {params: cycle(book) for params, book in books.items()}),
        "decode": ("ns per request", {params: decode(book, USUAL_RUNNING) for params, book in books.items()}),
    }
    return [
        each
        for name, (unit, family) in families.items()
        for each in against_first(f"cost of {name}", unit, compare(family, num_rounds))
    ]


def _by_running(num_rounds: int) -> list[Row]:
    book = Book.full(Ours(), USUAL_BLOCKS)
    decodes = {f"{number:,} running": decode(book, number) for number in RUNNING}
    in_steps = {f"{number:,} running": committed_decode(book, number) for number in RUNNING}
    cycles = {f"{number:,} running": _cycle_beside(number) for number in (RUNNING[0], RUNNING[-1])}
    return [
        *against_first("cost of decode", "ns per request", compare(decodes, num_rounds)),
        *against_first("cost of decode, with commit", "ns per request", compare(in_steps, num_rounds)),
        *against_first("cost of cycle", "ns per block", compare(cycles, num_rounds)),
    ]


def _lookup(book: Book) -> Sampler:
    """Requests whose blocks lie all over the pool."""

    def run() -> int:
        return sum(book.manager.get_computed_blocks(request)[1] for request in book.known)

    num_blocks = run() // BLOCK_SIZE
    return lambda: cpu_ns(run) / num_blocks


def _statistics(book: Book) -> Sampler:
    return lambda: cpu_ns(book.manager.stats)


def _cycle_beside(num_running: int) -> Sampler:
    book = Book.full(Ours(), USUAL_BLOCKS)
    book.start_decoding(num_running, 1)
    return cycle(book)


def _reach(path: str, times_faster: float, *, with_commit: bool = False) -> Bound:
    name = PATHS[path].name + (", with commit" if with_commit else "")
    return Bound("reach", name, PATHS[path].params, "vLLM", 1 / times_faster)


BOUNDS = (
    _reach("lookup", 10),
    _reach("cycle", 4),
    _reach("cycle", 3, with_commit=True),
    _reach("events", 8),
    _reach("decode", 10),
    _reach("decode_4", 12),
    _reach("chunked", 8),
    _reach("hashing", 1.7),
    Bound("try", PATHS["hashing"].name, PATHS["hashing"].params, PACKED_TOKENS, PACKED_LOOP_SLACK),
    _reach("pool", 50),
    _reach("start", 50),
    _reach("blocked", 150),
    *(Bound("reach", path.name, path.params, "vLLM", 1 / 4) for path in PATHS_OF_KINDS),
    *kv_hits.BOUNDS,
)

SECTIONS = (*PATHS, "kinds", "limits", "growth", "hits")


def open_sections(undo: ExitStack) -> Mapping[str, Section]:
    vllm = harness.installed(Vllm)
    paths = {name: partial(measure, path, vllm) for name, path in PATHS.items()}
    return {
        **paths,
        "kinds": partial(kind_rows, vllm),
        "limits": limit_rows,
        "growth": growth,
        "hits": lambda num_rounds: kv_hits.hit_rows(vllm, is_quick=num_rounds <= QUICK_ROUNDS),
    }


if __name__ == "__main__":
    harness.main(
        "the KV cache manager against its peers, CPU time",
        SECTIONS,
        open_sections,
        rounds=(ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
