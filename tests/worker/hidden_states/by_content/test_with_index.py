"""Index and store together, around the real KV manager: everybody gets the rows of a recompute, and gets done."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.worker.hidden_states.by_content.journeys import drawn
from tests.worker.hidden_states.by_content.mini_engine import Knobs, play

EVERYWHERE = [
    *("done", "hit of a wish", "clamped", "rows from the store", "evicted", "dropped"),
    *("preempted", "withdrawn", "missing", "waits of readers"),
]


def knobs_of(rng: random.Random) -> Knobs:
    block_size = rng.choice([1, 2, 4])
    return Knobs(
        block_size=block_size,
        num_blocks=1 + (44 // block_size) * rng.choice([1, 1, 2, 6]),
        capacity=rng.choice([0, 6, 12, 40, 200]),
        token_budget=rng.choice([3, 8, 16, 64]),
        num_keys=rng.choice([1, 2]),
        absent=rng.choice([0.0, 0.0, 0.2]),
        failing=rng.choice([0.0, 0.1]),
        journey=drawn(rng.randrange(1 << 30)),
    )


def test_everybody_gets_true_rows() -> None:
    seen: Counter[str] = Counter()
    for seed in range(40):
        seen += play(knobs_of(random.Random(seed)), seed)
    assert {what: seen[what] for what in EVERYWHERE if seen[what] < 3} == {}
    assert seen["done"] == 40 * 12


@pytest.mark.soak
def test_everybody_gets_true_rows_for_minutes(draw_seeds: Callable[[int], range]) -> None:
    for seed in draw_seeds(3000):
        play(knobs_of(random.Random(seed)), seed, 20)
