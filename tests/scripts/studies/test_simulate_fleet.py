"""The simulation of a fleet, beside what can be computed, what is played request by request, and the page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from scripts.studies.simulate_fleet.cases import BASE, Case, rules
from scripts.studies.simulate_fleet.levels import GIB, RECORD_BYTES, play
from scripts.studies.simulate_fleet.report import rows_of, rule_lines, table_lines
from scripts.studies.simulate_fleet.requests import Load, Requests, draw, popularity
from tests.house import REPOSITORY

PAGE = (REPOSITORY / "docs" / "fleet.md").read_text()
ENDLESS_GIB = 1e6


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


def test_pictures_of_ones_own_are_missed_once_on_each_host_that_the_session_reaches() -> None:
    """Sessions have `k` turns with probability `p (1 - p) ** (k - 1)`, and each turn reaches any of the hosts."""
    load = Load(hosts=5, own=1.0, affinity=0.0, turns=4.0)
    (outcome,) = play(draw(load, 100_000, 1), 5, ENDLESS_GIB, (ENDLESS_GIB,))
    p, others = 1 / load.turns, 1 - 1 / load.hosts
    hosts_reached = load.hosts * (1 - p * others / (1 - (1 - p) * others))
    assert 1 - outcome.first / outcome.asked == pytest.approx(hosts_reached * p, abs=0.01)
    assert outcome.encoded / outcome.asked == pytest.approx(p, abs=0.01)  # each once, in the whole fleet


@pytest.mark.parametrize(("first", "second"), [(3, 8), (20, 50), (4, 1000)])
def test_a_fleet_that_is_played_request_by_request_finds_the_same(first: int, second: int) -> None:
    rng = np.random.default_rng(3)
    requests = Requests(rng.integers(0, 4, 2_000), rng.zipf(1.3, 2_000) % 300, 100.0)
    hosts = [list[int]() for _ in range(4)]
    behind: list[int] = []
    found = [0, 0]
    for number, (host, key) in enumerate(zip(requests.hosts.tolist(), requests.keys.tolist(), strict=True)):
        for level, (held, size) in enumerate(((hosts[host], first), (behind, second))):
            is_held = key in held
            if is_held:
                held.remove(key)
                found[level] += number >= 1_000
            held.append(key)
            del held[:-size]
            if is_held:
                break
    (outcome,) = play(requests, 4, gib_of(first), (gib_of(second),))
    assert [outcome.first, outcome.second] == found
    assert outcome.encoded == 1_000 - sum(found)


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
