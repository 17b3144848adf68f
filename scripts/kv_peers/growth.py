"""Ours alone: the cost per operation for pools of 1k to 1M blocks and 1 to 1,024 running requests.

Each figure is held against the smallest of its family; all pools are full of published content.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmark import Row, row
from kv_peers import samplers as sample
from kv_peers.book import Book
from kv_peers.sides import BLOCK_SIZE, Ours
from kv_peers.timing import Sampler, compare, cpu_ns

NUM_BLOCKS = (1_000, 10_000, 100_000, 1_000_000)
NUM_RUNNING = (1, 4, 16, 64, 256, 1_024)
USUAL_BLOCKS = 100_000
USUAL_RUNNING = 16


def growth(num_rounds: int) -> list[Row]:
    return [*_by_blocks(num_rounds), *_by_running(num_rounds)]


def _by_blocks(num_rounds: int) -> list[Row]:
    books = {f"{number:,} blocks": Book.full(Ours(), number) for number in NUM_BLOCKS}
    # Lookups come first, because cycles evict what they find.
    families = {
        "lookup": ("ns per block", {params: _lookup(book) for params, book in books.items()}),
        "statistics": ("ns", {params: _statistics(book) for params, book in books.items()}),
        "cycle": ("ns per block", {params: sample.cycle(book) for params, book in books.items()}),
        "decode": ("ns per request", {params: sample.decode(book, USUAL_RUNNING) for params, book in books.items()}),
    }
    return [each for name, (unit, family) in families.items() for each in _rows(name, unit, family, num_rounds)]


def _by_running(num_rounds: int) -> list[Row]:
    book = Book.full(Ours(), USUAL_BLOCKS)
    decodes = {f"{number:,} running": sample.decode(book, number) for number in NUM_RUNNING}
    in_steps = {f"{number:,} running": sample.committed_decode(book, number) for number in NUM_RUNNING}
    cycles = {f"{number:,} running": _cycle_beside(number) for number in (NUM_RUNNING[0], NUM_RUNNING[-1])}
    return [
        *_rows("decode", "ns per request", decodes, num_rounds),
        *_rows("decode, with commit", "ns per request", in_steps, num_rounds),
        *_rows("cycle", "ns per block", cycles, num_rounds),
    ]


def _rows(name: str, unit: str, family: Mapping[str, Sampler], num_rounds: int) -> list[Row]:
    figures = compare(family, num_rounds)
    smallest = next(iter(figures))
    return [
        row(f"cost of {name}", params, value, unit, peer=smallest, peer_value=figures[smallest])
        for params, value in figures.items()
        if params != smallest
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
    return sample.cycle(book)
