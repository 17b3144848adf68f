"""The store and its plain model, led through the same random histories, agree after every action; see `pair`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.house.drawing import examples
from tests.worker.hidden_states.by_content.journeys import LARGE, Journey, drawn
from tests.worker.hidden_states.by_content.pair import ACTIONS, NUMBERS, Pair, Setting, lead

SETTINGS = st.builds(
    Setting, st.integers(1, 4), st.integers(0, 12), st.integers(1, 3), st.integers(0, NUMBERS - 1).map(drawn)
)
EVERYWHERE = [
    *ACTIONS,
    *("hit", "hit within a block", "replay", "guesses", "absent", "withdrawn", "declared late", "evicted", "dropped"),
    "true rows",
]
ON_THE_WAY = [
    *("copies", "waits of readers", "waits for the limit"),
    "calls with copies under way",
]


class StoreBesideModel(RuleBasedStateMachine):
    @initialize(setting=SETTINGS)
    def begin(self, setting: Setting) -> None:
        self.pair = Pair(setting)

    @rule(action=st.sampled_from(list(ACTIONS)), number=st.integers(0, NUMBERS - 1))
    def act(self, action: str, number: int) -> None:
        self.pair.do(action, number)


StoreBesideModel.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=30)
TestStoreBesideModel = StoreBesideModel.TestCase


def test_long_histories_reach_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        seen += lead(seed, 150)
    assert {what: seen[what] for what in EVERYWHERE if seen[what] < 5} == {}


@pytest.mark.parametrize("polls", [0, 1, 2, 3, 12])
def test_no_journey_shows(polls: int) -> None:
    """However long copies take, however little may be under way."""
    seen: Counter[str] = Counter()
    for seed, limit in enumerate([0, 0, 200, 200, 200, 1000, LARGE, LARGE], 100 * polls):
        seen += lead(seed, 60, journey=Journey(polls, limit, seed))
    assert seen["copies"]


def test_journeys_reach_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(70):
        seen += lead(seed, 60, journey=drawn(seed))
    assert {what: seen[what] for what in (*EVERYWHERE, *ON_THE_WAY) if seen[what] < 5} == {}


def test_requests_that_came_in_one_step_are_cut_in_its_order() -> None:
    lead(698_541_083, 200, journey=drawn(698_541_083))


@pytest.mark.soak
def test_equal_for_minutes(draw_seeds: Callable[[int], range]) -> None:
    for seed in draw_seeds(3000):
        lead(seed, 200, journey=drawn(seed))
