"""What comes before the ring: content keys, the processor caches on both sides, and the decoders.

hashing     a key against its digest alone, and against vLLM's for the same parts
classes     LRU, mirror (sender, receiver) and ring (both in one) against vLLM's classes
processing  items per second of two decoders, beside one and beside threads; a hit beside running work

vLLM is measured where it is installed: `make bench-peers`. Without it the limits are left.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch

from benchmark import Row, print_rows
from cache_peers.hashing import against_the_digest, against_vllm
from cache_peers.processing_pool import pool_rows
from cache_peers.vllm_classes import class_rows
from ring_peers.transport import Unavailable

REPEATS = 5
QUICK_REPEATS = 2

Measure = Callable[[int], list[Row]]
SECTIONS: dict[str, tuple[Measure, ...]] = {
    "hashing": (against_the_digest, against_vllm),
    "classes": (class_rows,),
    "processing": (pool_rows,),
}


def measured(section: str, repeats: int) -> list[Row]:
    """Return a section's rows; say which are left out for want of a peer."""
    rows: list[Row] = []
    for measure in SECTIONS[section]:
        try:
            rows += measure(repeats)
        except Unavailable as error:
            print(f"{section}: left out: {error}", file=sys.stderr)
    return rows


def main() -> None:
    title = "keys, processor caches and processing"
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of a table")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_REPEATS} repeats instead of {REPEATS}")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="some sections")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for section in arguments.only:
        started = time.monotonic()
        rows += measured(section, QUICK_REPEATS if arguments.quick else REPEATS)
        print(f"{section}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    print_rows(title, rows, as_json=arguments.json)


if __name__ == "__main__":
    main()
