"""The scheduler and its books beside vLLM's: whole steps, the encoder cache manager's cycles, their limit, what grows.

Times are CPU time of this process. vLLM is measured where it is installed: `make bench-peers`. Without it the cost of
steps, the limits, the growth and the engine's overhead are left.
"""

from __future__ import annotations

import sys
from functools import partial

from benchmark import Row
from ring_peers.transport import Unavailable
from scheduler_peers import encoder, steps
from scheduler_peers.growth import growth
from scheduler_peers.limits import limit_rows
from scheduler_peers.overhead import overhead
from scheduler_peers.promises import BOUNDS, STEP_BOUNDS
from scheduler_peers.sides import Side, Vllm
from section_runs import Section, run_sections

ROUNDS = 21
QUICK_ROUNDS = 5


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
    run_sections(
        "scheduler and encoder books against their peers, CPU time",
        [*encoder.PATHS, *steps.PATHS, "limits", "growth", "overhead"],
        lambda: sections(installed_vllm()),
        (*BOUNDS, *STEP_BOUNDS),
        rounds=(ROUNDS, QUICK_ROUNDS),
    )


if __name__ == "__main__":
    main()
