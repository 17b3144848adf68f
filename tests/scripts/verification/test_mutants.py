"""The explorer can see: with any one rule removed it finds what goes wrong then, and with it nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.verification.explorer import Violation
from scripts.verification.lease_mutants import MUTANTS
from scripts.verification.lease_scenarios import Actors, Scenario, explore
from scripts.verification.mutants import Mutant, Unnoticed, notice


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_a_missing_rule_is_found(mutant: Mutant[Scenario]) -> None:
    notice(mutant, [lambda scenario: explore(scenario).check()], Violation)


@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_with_the_rule_nothing_is_wrong_there(mutant: Mutant[Scenario]) -> None:
    scenario = mutant.subject
    assert scenario.setting.actors != Actors()
    finding = explore(replace(scenario, setting=replace(scenario.setting, actors=Actors())))
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
