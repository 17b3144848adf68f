"""The worlds can fail: with any one rule of the product removed, one of a few of them does."""

from __future__ import annotations

import pytest

from mmcached.wire.errors import MmcachedError
from scripts.verification.mutants import Mutant, notice
from tests.removals import Removal, without_it
from tests.world.knobs import knobs_of
from tests.world.mutants import MUTANTS, SEEDS
from tests.world.world import play

NOTICED = (AssertionError, MmcachedError, ValueError)
"""Wrong answers, a world that does not end, and books or workers that find it themselves."""


def play_one(seed: int) -> None:
    play(knobs_of(seed))


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_product_without_one_of_its_rules_is_noticed(mutant: Mutant[Removal]) -> None:
    notice(mutant, without_it(play_one, SEEDS), NOTICED)
