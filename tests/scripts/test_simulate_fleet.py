"""The simulation of a fleet, beside what can be computed, what is played request by request, and the page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from scripts.bench.nurseries import StoreCache
from scripts.bench.policies import Lru
from scripts.simulate_fleet import __main__ as command
from scripts.simulate_fleet.cases import BASE, Case, rules
from scripts.simulate_fleet.levels import GIB, RECORD_BYTES, play
from scripts.simulate_fleet.report import rows_of, rule_lines, table_lines
from scripts.simulate_fleet.requests import Load, Requests, draw, popularity
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


def test_what_is_saved_and_carried_follows_from_the_counts() -> None:
    (outcome,) = play(Requests(np.array([0, 0, 0, 1]), np.array([1, 2, 1, 1]), 8.0), 2, ENDLESS_GIB, (ENDLESS_GIB,))
    assert (outcome.asked, outcome.first, outcome.second, outcome.encoded) == (2, 1, 1, 0)
    assert outcome.bytes_per_s == RECORD_BYTES / 4
    assert outcome.encoder_s_an_hour(outcome.second, 0.5) == 0.5 * 3600 / 4


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


def test_the_same_seed_draws_the_same() -> None:
    first, again, other = (draw(Load(pictures=1_000), 5_000, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.keys, again.keys)
    assert np.array_equal(first.hosts, again.hosts)
    assert not np.array_equal(first.keys[:100], other.keys[:100])
    assert len(first.keys) == pytest.approx(5_000, rel=0.05)


def test_a_fleet_of_ones_own_is_the_pages_but_for_what_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["simulate_fleet", "--json", "--hosts", "1", "--second-gib", "256"])
    command.main()
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["hosts"], row["first_gib"], row["exponent"]) == (1, 64, BASE.load.exponent)
    assert f"| 1 host, 256 GiB behind | {row['first']:.1f} % | {row['second']:.1f} % |" in PAGE


@pytest.mark.parametrize(("field", "value"), [("hosts", 0), ("affinity", 1.5), ("turns", 0.5)])
def test_a_fleet_of_which_nothing_can_be_drawn_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        replace(Load(), **{field: value})  # type: ignore[arg-type]  # of either kind


def test_a_recorded_service_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One conversation that grows by a block at each of ten turns; the other has the instructions alone in common."""
    turns = [[0, *range(first, first + turn)] for turn in range(1, 11) for first in (100, 200)]
    lines = [
        json.dumps({"timestamp": 1000 * number, "input_length": 512 * len(ids), "hash_ids": ids})
        for number, ids in enumerate(turns)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines))
    monkeypatch.setattr("sys.argv", ["simulate_fleet", "--json", "--trace", str(trace)])
    command.main()
    rows = {(row["hosts"], row["affinity"]): row for row in json.loads(capsys.readouterr().out)}
    alone, scattered = rows[1, 0.9], rows[16, 0.0]
    asked = sum(map(len, turns))
    assert alone["asked"] == pytest.approx(asked / 2, abs=1)
    assert scattered["first"] < alone["first"]
    assert scattered["encoded"] == pytest.approx(alone["encoded"])  # what is new to the fleet


def test_the_stores_rule_can_stand_for_the_first_level() -> None:
    requests = draw(Load(hosts=2, pictures=1_000), 4_000, 1)
    (lru,), (store,) = (play(requests, 2, 128.0, (0.0,), rule) for rule in (Lru, StoreCache))
    assert lru == store  # there is room for all
