"""Each rule of the store is needed: without it, the comparison with the plain model fails."""

from __future__ import annotations

import pytest

from mmcached.wire.errors import InvariantError
from tests.worker.hidden_states.by_content.journeys import DIRECT, drawn
from tests.worker.hidden_states.by_content.mutants import MUTANTS, ON_THE_WAY
from tests.worker.hidden_states.by_content.pair import lead

CAUGHT = (AssertionError, InvariantError, pytest.fail.Exception)
NUM_HISTORIES = 150
NUM_ACTIONS = 60


@pytest.mark.parametrize("mutant", [*MUTANTS, *ON_THE_WAY])
def test_mutant_is_caught(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (MUTANTS | ON_THE_WAY)[mutant](monkeypatch)
    num_histories = NUM_HISTORIES if mutant in MUTANTS else 2 * NUM_HISTORIES
    for seed in range(num_histories):
        try:
            lead(seed, NUM_ACTIONS, journey=DIRECT if mutant in MUTANTS else drawn(seed))
        except CAUGHT:
            return
    pytest.fail(f"{num_histories} histories, and a store that {mutant} was not told from the product")
