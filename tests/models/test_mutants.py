"""The explorer can see: with any one rule removed it finds what goes wrong then, and with it nothing is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.models.mutants import MUTANTS, Mutant
from tests.models.scenarios import explore
from tests.models.setting import Actors


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_missing_rule_is_found(mutant: Mutant) -> None:
    finding = explore(mutant.setting, mutant.budget)
    assert finding.violation is not None
    assert finding.violation.startswith(mutant.breaks), "\n  ".join([finding.violation, *finding.trace])
    assert finding.trace


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_with_the_rule_nothing_is_wrong_there(mutant: Mutant) -> None:
    assert mutant.setting.actors != Actors()
    finding = explore(replace(mutant.setting, actors=Actors()), mutant.budget)
    assert finding.violation is None, "\n  ".join([finding.violation, *finding.trace])
    assert finding.is_exhausted
