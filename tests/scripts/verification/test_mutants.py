"""The explorer can see: with any one rule removed it finds what goes wrong then, and with it nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.verification import segment_mutants, segment_scenarios, segment_world, self_lease_scenarios
from scripts.verification.explorer import Violation
from scripts.verification.mutants import Mutant, Unnoticed, notice
from scripts.verification.self_lease_world import Scenario, Setting
from scripts.verification.weak_memory import Order

MUTANTS = (*self_lease_scenarios.MUTANTS, *segment_mutants.MUTANTS)


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


def test_a_mutant_has_something_in_the_place_of_the_product() -> None:
    assert all(mutant.subject.setting.patches for mutant in self_lease_scenarios.MUTANTS)


KNOWN_OF_SEGMENTS = {
    (scenario.setting, scenario.order) for scenario in (*segment_scenarios.SMALL, *segment_scenarios.LARGE)
}
OF_SEGMENTS = {(mutant.subject.setting.as_it_is(), mutant.subject.order) for mutant in segment_mutants.MUTANTS}


@pytest.mark.parametrize(("setting", "order"), sorted(OF_SEGMENTS - KNOWN_OF_SEGMENTS, key=str))
def test_with_the_rule_nothing_is_wrong_in_a_store_of_segments(setting: segment_world.Setting, order: Order) -> None:
    assert_nothing_is_wrong(segment_world.Scenario("as it is", setting, order))


def test_a_mutant_of_a_store_of_segments_breaks_a_rule() -> None:
    assert all(mutant.subject.setting != mutant.subject.setting.as_it_is() for mutant in segment_mutants.MUTANTS)


def assert_nothing_is_wrong(scenario: Scenario | segment_world.Scenario) -> None:
    finding = scenario.explore()
    finding.check()
    assert finding.is_exhausted


def test_a_mutant_that_passes_every_play_is_unnoticed() -> None:
    played: list[str] = []
    with pytest.raises(Unnoticed, match="no rule: every play has passed"):
        notice(Mutant("no rule", "x"), [played.append, played.append], KeyError)
    assert played == ["x", "x"]


def test_only_what_the_mutant_breaks_counts_and_the_first_that_does_ends_it() -> None:
    found = notice(Mutant("a rule", "x", breaks="'x'"), [str, {"y": 1}.__getitem__, pytest.fail], KeyError)
    assert isinstance(found, KeyError)
    with pytest.raises(Unnoticed, match="not 'y', but 'x'"):
        notice(Mutant("a rule", "x", breaks="'y'"), [{"y": 1}.__getitem__], KeyError)
    with pytest.raises(ValueError, match="invalid"):
        notice(Mutant("a rule", "x"), [int], KeyError)
