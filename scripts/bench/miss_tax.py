"""Measures what a store costs where nearly nothing repeats: ServeGen's `trace_c`, 98 % of whose pictures come once.

service    embeddings of the trace's pictures by a service with a store and by one without, in pairs; CPU time of all
           processes, too
vllm       the same by vLLM's OpenAI server on the CPU, tiny checkpoint, time to the first token; needs `.venv-vllm`

`--trace FILE` is a file in the format of `trace_c` (docs/traces.md); without it, a sequence of as many pictures of
which 2 % repeat an earlier one, drawn at random. Pictures are noise, one for each id. A pair is a few requests, sent to
both sides, each side first in turns. Pairs are added until the 95 % interval of the median ratio is within 1 %, or
`--pairs` are done; the table has median and interval.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from mmcached.cli.traces.readers import read_uses
from mmcached.client import Client
from scripts.bench import harness
from scripts.bench.adapters_servers import (
    SMALL_IMAGE,
    SMALL_TOWER,
    about,
    first_token_ms,
    make_checkpoint,
    start_servers,
    start_store,
)
from scripts.bench.encode import cpu_ms, service
from scripts.bench.harness import Bound, Row, Section, row
from tests.hosts.prompts import Content
from tests.hosts.vllm.servers import VllmServer, mmcached

SERVICE, VLLM = "service", "vllm"
WITHOUT = "without a store"
SIDES = {"encoder of 14 ms": 256, "encoder of 130 ms": 768}
"""Pixels of a picture's side, by the time that the reference encoder takes for one on one core."""
NUM_USES, REPEATED = 50_954, 0.02
PER_PAIR = {256: 8, 768: 2}
MIN_PAIRS, RESOLVED = 20, 0.01
BEHIND_S = 0.05  # for what comes behind an answer
BOUNDS = [
    *(Bound("reach", "time of an embedding, median of pairs", params, WITHOUT, 1.02) for params in SIDES),
    *(Bound("try", "CPU time, median of pairs", params, WITHOUT, 1.02) for params in SIDES),
    Bound("reach", "first token, median of pairs", SMALL_IMAGE, WITHOUT, 1.02),
]

Times = tuple[float, ...]
Drawn = TypeVar("Drawn")


def pictures(trace: Path | None) -> Iterator[int]:
    """Yield the pictures' numbers in the order of their uses."""
    if trace is not None:
        return iter(read_uses(trace).keys.tolist())
    rng = np.random.default_rng(0)
    repeats = rng.random(NUM_USES) < REPEATED
    return iter([int(rng.integers(0, use + 1)) if repeats[use] else use for use in range(NUM_USES)])


def picture(number: int, side: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((side, side)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def compare_services(trace: Path | None, max_pairs: int, _num_rounds: int) -> Iterator[Row]:
    uses = pictures(trace)
    with service() as kept, service(store_gb=0) as off, Client(kept) as ours, Client(off) as theirs:
        for params, side in SIDES.items():
            sides = (partial(_embed, kept, ours), partial(_embed, off, theirs))
            draw = partial(_draw, uses, side)
            yield from _rows(("time of an embedding", "CPU time"), params, _pairs(sides, draw, max_pairs))


def _draw(uses: Iterator[int], side: int) -> list[bytes]:
    return [picture(next(uses), side) for _ in range(PER_PAIR[side])]


def _embed(run_dir: Path, client: Client, images: Sequence[bytes]) -> Times:
    """Return the milliseconds of the embeddings, each asked for when the last one is there, and of all processes."""
    cpu_before, began = cpu_ms(run_dir), time.perf_counter()
    for each in images:
        client.encode([each])
    taken_ms = (time.perf_counter() - began) * 1e3
    time.sleep(BEHIND_S)
    return taken_ms, cpu_ms(run_dir) - cpu_before


def compare_vllm(trace: Path | None, max_pairs: int, _num_rounds: int) -> Iterator[Row]:
    uses = pictures(trace)
    with ExitStack() as stack:
        run_dir = start_store(stack)
        off, ours = start_servers(stack, [{}, mmcached(run_dir)], make_checkpoint(stack, *SMALL_TOWER))

        def first_token(server: VllmServer, message: Content) -> Times:
            return (first_token_ms(server, message),)

        sides = (partial(first_token, ours), partial(first_token, off))
        pairs = _pairs(sides, lambda: about(1000 + next(uses)), max_pairs)
        yield from _rows(("first token",), SMALL_IMAGE, pairs)


def _pairs(
    sides: tuple[Callable[[Drawn], Times], Callable[[Drawn], Times]], draw: Callable[[], Drawn], max_pairs: int
) -> list[tuple[Times, Times]]:
    """Return the times with a store and without, of `MIN_PAIRS` pairs or as many as resolve the first one."""
    pairs: list[tuple[Times, Times]] = []
    for first in cycle((0, 1)):
        drawn = draw()
        taken = {side: sides[side](drawn) for side in (first, 1 - first)}
        pairs.append((taken[0], taken[1]))
        if len(pairs) > max_pairs or (len(pairs) > MIN_PAIRS and _is_resolved([one[0] / two[0] for one, two in pairs])):
            break
    return pairs[1:]  # the first one starts decoders


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median, by order statistics."""
    ordered, half = sorted(ratios), 0.98 * len(ratios) ** 0.5
    middle = len(ratios) / 2
    return ordered[max(0, int(middle - half))], ordered[min(len(ratios) - 1, int(middle + half))]


def _is_resolved(ratios: Sequence[float]) -> bool:
    low, high = interval(ratios)
    return high - low <= 2 * RESOLVED


def _rows(names: Sequence[str], params: str, pairs: list[tuple[Times, Times]]) -> Iterator[Row]:
    for index, name in enumerate(names):
        ratios = [ours[index] / theirs[index] for ours, theirs in pairs]
        low, high = interval(ratios)
        found = {f"median of {len(pairs)}": statistics.median(ratios), "low": low, "high": high}
        for what, ratio in found.items():
            kind = "median of pairs" if what.startswith("median") else f"95 % interval, {what}"
            yield row(f"{name}, {kind}", params, ratio, "×", peer=WITHOUT, peer_value=1.0)
        yield row(f"{name}, pairs", params, len(pairs), "pairs", peer=WITHOUT, peer_value=1.0)


def main() -> None:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--trace", type=Path)
    options.add_argument("--pairs", type=int, default=400, help="at most, of each kind")
    given, _ = options.parse_known_args()
    sections: Mapping[str, Section] = {
        SERVICE: partial(compare_services, given.trace, given.pairs),
        VLLM: partial(compare_vllm, given.trace, given.pairs),
    }
    harness.main(
        "a store where nearly nothing repeats",
        sections,
        lambda undo: sections,
        rounds=(1, 1),
        bounds=BOUNDS,
        options=options,
    )


if __name__ == "__main__":
    main()
