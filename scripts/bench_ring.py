"""The ring against its peers and against memcpy: puts, hits, laps, copies, throughput, hops, and what grows.

put          from the writer's call until all readers, one process and one row each, hold a usable tensor
hit          the same for an item that is in the ring already
the limit    the fastest of memmove, np.copyto and Tensor.copy_ into a populated mapping, in the same run

Peers (vLLM's store, iceoryx2, Redis on a unix socket, shared_memory + pickle) are measured where they are installed:
`make bench-peers`. Without them the limits are left. Hit rates and refusals are `bench_eviction.py`'s.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch

from benchmark import Row, print_rows
from ring_peers import comparisons as compare
from ring_peers.growth import growth
from ring_peers.pool import ReaderPool
from ring_peers.reach import print_reach
from ring_peers.small_items import small_items

ROUNDS = 5
QUICK_ROUNDS = 2

Section = Callable[[ReaderPool, int], list[Row]]


def puts_and_hits(pool: ReaderPool, num_rounds: int) -> list[Row]:
    return [
        each
        for size in compare.SIZES
        for num_readers in compare.READERS
        for each in compare.puts_and_hits(pool, size, num_readers, num_rounds)
    ]


def images(pool: ReaderPool, num_rounds: int) -> list[Row]:
    figures = (compare.throughput, compare.first_laps, compare.private_copies)
    return [
        each
        for figure in figures
        for num_readers in compare.READERS
        for each in figure(pool, compare.IMAGE, num_readers, num_rounds)
    ]


def hits(pool: ReaderPool, num_rounds: int) -> list[Row]:
    rows = [each for num_readers in compare.READERS for each in compare.hits_by_size(pool, num_readers, num_rounds)]
    return rows + compare.bytes_copied(pool, compare.LARGE, max(compare.READERS))


def hops(pool: ReaderPool, num_rounds: int) -> list[Row]:
    return [each for size in (compare.SMALL, compare.IMAGE) for each in compare.two_hops(pool, size, num_rounds)]


SECTIONS: dict[str, Section] = {
    "puts": puts_and_hits,
    "images": images,
    "hits": hits,
    "small": small_items,
    "hops": hops,
    "growth": lambda _, num_rounds: growth(num_rounds),
}


def main() -> None:
    title = "the ring against its peers"
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of a table")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds instead of {ROUNDS}")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="some sections")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with ReaderPool(max(compare.READERS)) as pool:
        for name in arguments.only:
            started = time.monotonic()
            rows += SECTIONS[name](pool, QUICK_ROUNDS if arguments.quick else ROUNDS)
            print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    print_rows(title, rows, as_json=arguments.json)
    if not arguments.json:
        print_reach(rows)


if __name__ == "__main__":
    main()
