"""The KV cache manager beside vLLM's: lookups, allocation, decoding, hashing, construction, and what grows.

Times are CPU time of this process. vLLM is measured where it is installed: `make bench-peers`. Without it the limits,
the cost of steps and the growth are left.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

from benchmark import Row, print_rows
from bounds import print_bounds
from kv_peers.growth import growth
from kv_peers.limits import limit_rows
from kv_peers.paths import PATHS, measure
from kv_peers.promises import BOUNDS
from kv_peers.sides import Side, Vllm
from ring_peers.transport import Unavailable

ROUNDS = 11
QUICK_ROUNDS = 3

Section = Callable[[int], list[Row]]


def sections(vllm: Side | None) -> dict[str, Section]:
    """Return what can be measured, by name: a function of the number of rounds."""
    paths = {name: partial(measure, path, vllm) for name, path in PATHS.items()}
    return {**paths, "limits": limit_rows, "growth": growth}


def installed_vllm() -> Side | None:
    """Return vLLM's side; say so if it is not there."""
    try:
        return Vllm()
    except Unavailable as error:
        print(f"rows against vLLM are left out: {error}", file=sys.stderr)
        return None


def main() -> None:
    title = "the KV cache manager against its peers, CPU time"
    names = [*PATHS, "limits", "growth"]
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of a table")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds instead of {ROUNDS}")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="some sections")
    arguments = parser.parse_args()
    measured = sections(installed_vllm())
    rows: list[Row] = []
    for name in arguments.only:
        started = time.monotonic()
        rows += measured[name](QUICK_ROUNDS if arguments.quick else ROUNDS)
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    print_rows(title, rows, as_json=arguments.json)
    if not arguments.json:
        print_bounds(rows, BOUNDS)


if __name__ == "__main__":
    main()
