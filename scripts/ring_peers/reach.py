"""The bounds that the ring's figures are held against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmark import Row
from bounds import Bound, Kind, print_bounds


def _for_readers(
    kind: Kind, name: str, size: str, peer: str, ratios: tuple[float, float, float], *, is_floor: bool = False
) -> Iterator[Bound]:
    for readers, ratio in zip(("1 reader", "2 readers", "4 readers"), ratios, strict=True):
        yield Bound(kind, name, f"{size}, {readers}", peer, ratio, is_floor)


BOUNDS = [
    *_for_readers("reach", "put", "4.7 MiB", "vLLM", (0.60, 0.55, 0.40)),
    *_for_readers("try", "put", "4.7 MiB", "iceoryx2", (1.25, 1.25, 1.25)),
    *_for_readers("reach", "put", "64 MiB", "vLLM", (0.22, 0.18, 0.12)),
    *_for_readers("try", "put", "64 MiB", "memcpy", (1.1, 1.1, 1.1)),
    *_for_readers("reach", "put", "64 KiB", "vLLM", (0.50, 0.55, 0.50)),
    *_for_readers("try", "put", "64 KiB", "vLLM", (0.40, 0.40, 0.40)),
    *_for_readers("reach", "hit", "4.7 MiB", "vLLM", (0.30, 0.35, 0.25)),
    *_for_readers("reach", "hit", "64 MiB", "ours, 64 KiB", (1.4, 1.4, 1.4)),
    *_for_readers("try", "hit", "4.7 MiB", "hand-off", (1.0, 1.0, 1.0)),
    Bound("reach", "copied for a hit", "64 MiB, 4 readers", "vLLM", 0),
    *_for_readers("reach", "hit", "64 MiB", "vLLM", (0.01, 0.01, 0.01)),
    *_for_readers("reach", "throughput", "4.7 MiB", "vLLM", (1.2, 2.0, 2.8), is_floor=True),
    *_for_readers("try", "throughput", "4.7 MiB", "memcpy", (0.85, 0.85, 0.85), is_floor=True),
    *_for_readers("reach", "first lap", "4.7 MiB", "vLLM", (0.15, 0.15, 0.15)),
    *_for_readers("reach", "put, private copies", "4.7 MiB", "vLLM", (1.0, 1.0, 1.0)),
    Bound("reach", "put, ring or inline", "4 KiB, 2 readers", "inline", 1.05),
]


def print_reach(rows: Iterable[Row]) -> None:
    """Print each bound that a row of this run is about."""
    print_bounds(rows, BOUNDS)
