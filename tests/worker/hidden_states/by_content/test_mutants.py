"""Each rule of the store is needed: without it, the comparison with the plain model fails."""

from __future__ import annotations

import pytest

from mmcached.wire.errors import InvariantError
from scripts.verification.mutants import Mutant, notice
from tests.removals import Removal, without_it
from tests.worker.hidden_states.by_content.journeys import DIRECT, drawn
from tests.worker.hidden_states.by_content.mutants import MUTANTS, ON_THE_WAY
from tests.worker.hidden_states.by_content.pair import lead

CAUGHT = (AssertionError, InvariantError, pytest.fail.Exception)
NUM_HISTORIES = 150
NUM_ACTIONS = 60


def play(seed: int) -> None:
    lead(seed, NUM_ACTIONS, journey=DIRECT)


def play_on_the_way(seed: int) -> None:
    lead(seed, NUM_ACTIONS, journey=drawn(seed))


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_store_without_one_of_its_rules_is_noticed(mutant: Mutant[Removal]) -> None:
    notice(mutant, without_it(play, range(NUM_HISTORIES)), CAUGHT)


@pytest.mark.parametrize("mutant", ON_THE_WAY, ids=str)
def test_a_rule_for_rows_on_their_way_is_missed(mutant: Mutant[Removal]) -> None:
    notice(mutant, without_it(play_on_the_way, range(2 * NUM_HISTORIES)), CAUGHT)
