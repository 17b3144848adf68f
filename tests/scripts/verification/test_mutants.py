"""The explorer can see: with any one rule removed it finds what goes wrong then, and with it nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.verification import segment_mutants, segment_scenarios, segment_world, self_lease_scenarios
from scripts.verification.explorer import Violation
from scripts.verification.mutants import Mutant, notice
from scripts.verification.self_lease_world import Scenario, Setting
from scripts.verification.weak_memory import Order

TAKES_LONG = "taken is counted before returned"
MUTANTS = [
    pytest.param(mutant, marks=pytest.mark.soak) if str(mutant) == TAKES_LONG else mutant
    for mutant in (*self_lease_scenarios.MUTANTS, *segment_mutants.MUTANTS)
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_missing_rule_is_found(mutant: Mutant[Scenario | segment_world.Scenario]) -> None:
    notice(mutant, [lambda scenario: scenario.explore().check()], Violation)


KNOWN = {(scenario.setting, scenario.order) for scenario in (*self_lease_scenarios.SMALL, *self_lease_scenarios.LARGE)}
OTHERS = {
    (replace(mutant.subject.setting, patches=()), mutant.subject.order) for mutant in self_lease_scenarios.MUTANTS
} - KNOWN


@pytest.mark.parametrize(("setting", "order"), sorted(OTHERS, key=str))
def test_with_the_rule_nothing_is_wrong_where_readers_take_their_leases(setting: Setting, order: Order) -> None:
    assert_nothing_is_wrong(Scenario("as it is", setting, order))


KNOWN_OF_SEGMENTS = {
    (scenario.setting, scenario.order) for scenario in (*segment_scenarios.SMALL, *segment_scenarios.LARGE)
}
OF_SEGMENTS = {(mutant.subject.setting.as_it_is(), mutant.subject.order) for mutant in segment_mutants.MUTANTS}


@pytest.mark.parametrize(("setting", "order"), sorted(OF_SEGMENTS - KNOWN_OF_SEGMENTS, key=str))
def test_with_the_rule_nothing_is_wrong_in_a_store_of_segments(setting: segment_world.Setting, order: Order) -> None:
    assert_nothing_is_wrong(segment_world.Scenario("as it is", setting, order))


def assert_nothing_is_wrong(scenario: Scenario | segment_world.Scenario) -> None:
    finding = scenario.explore()
    finding.check()
    assert finding.is_exhausted
