"""The protocol as it is: every state of each scenario keeps the invariants, and from it all leases can return."""

from __future__ import annotations

import pytest

from scripts.verification import segment_scenarios, self_lease_scenarios
from scripts.verification.explore import Scenario

SMALL = (*self_lease_scenarios.SMALL, *segment_scenarios.SMALL)
LARGE = (*self_lease_scenarios.LARGE, *segment_scenarios.LARGE)


@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
def test_every_state_keeps_the_invariants(scenario: Scenario) -> None:
    assert_nothing_is_wrong(scenario)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", LARGE, ids=lambda scenario: scenario.name)
def test_every_state_of_a_large_scenario_keeps_the_invariants(scenario: Scenario) -> None:
    assert_nothing_is_wrong(scenario)


def assert_nothing_is_wrong(scenario: Scenario) -> None:
    finding = scenario.explore()
    assert finding.violation is None, "\n  ".join([finding.violation, *finding.trace])
    assert finding.is_exhausted
