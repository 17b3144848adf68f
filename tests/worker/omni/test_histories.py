"""Random histories against the plain cache, and that each rule is needed for them to pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.wire.errors import MmcachedError
from tests.worker.omni.mini_engine import run
from tests.worker.omni.mutants import MUTANTS

CAUGHT = (AssertionError, MmcachedError, pytest.fail.Exception)
NUM_STEPS = 40
MAX_HISTORIES = 100


def test_what_is_delivered_is_what_was_written_last_or_is_called_missing() -> None:
    delivered = missed = hits = 0
    for seed in range(90):
        engine = run(seed, NUM_STEPS, declares=seed % 4 > 0)
        delivered += engine.delivered
        missed += engine.missed
        hits += engine.cache.stats().row_hits
    assert min(delivered, hits, 20 * missed) > 10_000, "the histories have become poor"


@pytest.mark.soak
def test_thousands_of_histories(draw_seeds: Callable[[int], range]) -> None:
    for seed in draw_seeds(6_000):
        run(seed, NUM_STEPS, declares=seed % 4 > 0)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_caught(mutant: str) -> None:
    make, broken = MUTANTS[mutant]
    for seed in range(MAX_HISTORIES):
        try:
            run(seed, NUM_STEPS, make=make, broken=broken)
        except CAUGHT:
            return
    pytest.fail(f"{MAX_HISTORIES} histories, and a cache that {mutant} was not told from the product")
