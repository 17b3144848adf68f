"""Each rule of the store is needed: without it, the comparison with the plain model fails."""

from __future__ import annotations

import pytest

from mmcached.wire.errors import InvariantError
from tests.worker.prefix_store.journeys import drawn
from tests.worker.prefix_store.mutants import MUTANTS
from tests.worker.prefix_store.mutants_on_the_way import MUTANTS_ON_THE_WAY
from tests.worker.prefix_store.pair import lead

CAUGHT = (AssertionError, InvariantError, pytest.fail.Exception)
NUM_HISTORIES = 150
NUM_ACTIONS = 60


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(mutant: str) -> None:
    for seed in range(NUM_HISTORIES):
        try:
            lead(seed, NUM_ACTIONS, MUTANTS[mutant])
        except CAUGHT:
            return
    pytest.fail(f"{NUM_HISTORIES} histories, and a store that {mutant} was not told from the product")


@pytest.mark.parametrize("mutant", MUTANTS_ON_THE_WAY)
def test_mutant_on_the_way_is_caught(mutant: str) -> None:
    for seed in range(2 * NUM_HISTORIES):
        try:
            lead(seed, NUM_ACTIONS, MUTANTS_ON_THE_WAY[mutant], drawn(seed))
        except CAUGHT:
            return
    pytest.fail(f"{2 * NUM_HISTORIES} histories, and a store that {mutant} was not told from the product")
