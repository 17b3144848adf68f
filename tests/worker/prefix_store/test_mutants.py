"""Each rule of the store is needed: without it, the comparison with the plain model fails."""

from __future__ import annotations

import pytest

from mmcached.wire.errors import InvariantError
from tests.worker.prefix_store.mutants import MUTANTS
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
