"""The KV cache manager beside vLLM's: lookups, allocation, decoding, hashing, construction, hit rates, and what grows.

Times are CPU time of this process. vLLM is measured where it is installed: `make bench-peers`. Without it the limits,
the cost of steps, the growth, and hit rates beside those of the plain rule are left.
"""

from __future__ import annotations

import sys
from functools import partial

from kv_peers.growth import growth
from kv_peers.hits import hit_rows
from kv_peers.limits import limit_rows
from kv_peers.paths import PATHS, measure
from kv_peers.promises import BOUNDS
from kv_peers.sides import Side, Vllm
from ring_peers.transport import Unavailable
from section_runs import Section, run_sections

ROUNDS = 11
QUICK_ROUNDS = 3


def sections(vllm: Side | None) -> dict[str, Section]:
    """Return what can be measured, by name: a function of the number of rounds."""
    paths = {name: partial(measure, path, vllm) for name, path in PATHS.items()}
    hits = partial(hit_rows, vllm, few_rounds=QUICK_ROUNDS)
    return {**paths, "limits": limit_rows, "growth": growth, "hits": hits}


def installed_vllm() -> Side | None:
    """Return vLLM's side; say so if it is not there."""
    try:
        return Vllm()
    except Unavailable as error:
        print(f"rows against vLLM are left out: {error}", file=sys.stderr)
        return None


def main() -> None:
    run_sections(
        "the KV cache manager against its peers, CPU time",
        [*PATHS, "limits", "growth", "hits"],
        lambda: sections(installed_vllm()),
        BOUNDS,
        rounds=(ROUNDS, QUICK_ROUNDS),
    )


if __name__ == "__main__":
    main()
