"""The simulation of a fleet, beside what can be computed, what is played request by request, and the page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from scripts.studies.simulate_fleet.cases import BASE, Case, rules
from scripts.studies.simulate_fleet.levels import GIB, RECORD_BYTES, play
from scripts.studies.simulate_fleet.report import rows_of, rule_lines, table_lines
from scripts.studies.simulate_fleet.requests import Load, draw, popularity
from tests.house import REPOSITORY

PAGE = (REPOSITORY / "docs" / "fleet.md").read_text()


def gib_of(num_records: int) -> float:
    return num_records * RECORD_BYTES / GIB


def che(shares: npt.NDArray[np.float64], num_records: int) -> float:
    """Return the hit rate of an LRU cache that is asked for independent objects.

    Source: Che, Tung, Wang, "Hierarchical Web caching systems", 2002.
    """
    low, high = 0.0, 1e12
    for _ in range(200):
        time = (low + high) / 2
        low, high = (time, high) if (1 - np.exp(-shares * time)).sum() < num_records else (low, time)
    return float((shares * (1 - np.exp(-shares * low))).sum())


@pytest.mark.parametrize("exponent", [0.7, 1.0])
def test_one_host_without_sessions_finds_what_ches_approximation_says(exponent: float) -> None:
    load = Load(hosts=1, exponent=exponent, own=0.0, turns=1.0, pictures=20_000)
    (outcome,) = play(draw(load, 100_000, 1), 1, gib_of(1_000), (0.0,))
    assert outcome.first / outcome.asked == pytest.approx(che(popularity(load), 1_000), abs=0.006)


@pytest.mark.soak
def test_a_first_level_with_room_for_its_sessions_finds_what_the_store_finds_and_the_page_says_both() -> None:
    ((gib, lru, store),) = rules([64.0], seed=1)
    assert lru.share(lru.first) == pytest.approx(store.share(store.first), abs=1.0)
    *_, line = rule_lines([(gib, lru, store)])
    assert line in PAGE.splitlines()


def test_the_page_says_what_the_script_says() -> None:
    """A few of the rows: all take minutes."""
    one_host = Case("hosts", "1 host", Load(hosts=1), second_gib=(25.6, 256.0))
    for case in (one_host, BASE):
        lines = list(table_lines(rows_of(case, case.outcomes(seed=1), 1, encode_s=0.1)))
        assert [line for line in lines if line not in PAGE.splitlines()] == []
