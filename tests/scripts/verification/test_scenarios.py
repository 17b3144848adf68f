"""The protocol as it is: every state of every scenario keeps the invariants, and from each all leases can come back."""

from __future__ import annotations

import pytest

from scripts.verification.lease_scenarios import LARGE, SMALL, Scenario, explore


@pytest.mark.parametrize("scenario", SMALL, ids=lambda scenario: scenario.name)
def test_every_state_keeps_the_invariants(scenario: Scenario) -> None:
    assert_nothing_is_wrong(scenario)


@pytest.mark.soak
@pytest.mark.parametrize("scenario", LARGE, ids=lambda scenario: scenario.name)
def test_every_state_of_a_large_scenario_keeps_the_invariants(scenario: Scenario) -> None:
    assert_nothing_is_wrong(scenario)


def assert_nothing_is_wrong(scenario: Scenario) -> None:
    finding = explore(scenario)
    assert finding.violation is None, "\n  ".join([finding.violation, *finding.trace])
    assert finding.is_exhausted
