"""The scheduler and its books beside vLLM's: whole steps, the encoder cache manager's cycles, their limit, what grows.

Times are CPU time of this process. vLLM is measured where it is installed: `make bench-peers`. Without it the cost of
steps, the limits, the growth and the engine's overhead are left.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

from benchmark import Row, print_rows
from bounds import print_bounds
from ring_peers.transport import Unavailable
from scheduler_peers import encoder, steps
from scheduler_peers.growth import growth
from scheduler_peers.limits import limit_rows
from scheduler_peers.overhead import overhead
from scheduler_peers.promises import BOUNDS, STEP_BOUNDS
from scheduler_peers.sides import Side, Vllm

ROUNDS = 21
QUICK_ROUNDS = 5

Section = Callable[[int], list[Row]]


def sections(vllm: Side | None) -> dict[str, Section]:
    """Return what can be measured, by name: a function of the number of rounds."""
    paths = {name: partial(encoder.measure, path, vllm) for name, path in encoder.PATHS.items()}
    whole = {name: partial(whole_steps, path, vllm) for name, path in steps.PATHS.items()}
    return {**paths, **whole, "limits": limit_rows, "growth": growth, "overhead": overhead}


def whole_steps(path: steps.Path, vllm: Side | None, num_rounds: int) -> list[Row]:
    """Return a path's rows; none, and say why, if vLLM's scheduler is not there although its managers are."""
    try:
        return steps.measure(path, vllm, num_rounds)
    except Unavailable as error:
        print(f"{path.name}: left out: {error}", file=sys.stderr)
        return []


def installed_vllm() -> Side | None:
    """Return vLLM's side; say so if it is not there."""
    try:
        return Vllm()
    except Unavailable as error:
        print(f"rows against vLLM are left out: {error}", file=sys.stderr)
        return None


def main() -> None:
    title = "scheduler and encoder books against their peers, CPU time"
    names = [*encoder.PATHS, *steps.PATHS, "limits", "growth", "overhead"]
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
        print_bounds(rows, (*BOUNDS, *STEP_BOUNDS))


if __name__ == "__main__":
    main()
