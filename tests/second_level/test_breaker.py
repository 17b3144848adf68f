"""A server that fails time after time is left alone, and probed by one call at a time."""

from __future__ import annotations

import pytest

from mmcached.second_level.breaker import FIRST_PAUSE_S, MAX_PAUSE_S, Breaker, CircuitOpen


def opened(breaker: Breaker, now: float) -> None:
    for _ in range(3):
        breaker.begin(now)
        breaker.failed(now, "refused")


@pytest.fixture
def breaker() -> Breaker:
    return Breaker(0.0, failures=3, draw=lambda: 0.5)


def test_it_opens_after_failures_in_succession(breaker: Breaker) -> None:
    for _ in range(5):
        breaker.failed(1.0, "late")
        breaker.failed(1.0, "late")
        breaker.succeeded(1.0)
    assert (breaker.state, breaker.since, breaker.reason) == ("closed", 0.0, "")
    opened(breaker, 2.0)
    assert (breaker.state, breaker.since, breaker.reason) == ("open", 2.0, "refused")
    with pytest.raises(CircuitOpen, match="refused"):
        breaker.begin(2.0 + FIRST_PAUSE_S - 0.01)


def test_one_call_probes(breaker: Breaker) -> None:
    opened(breaker, 0.0)
    breaker.begin(FIRST_PAUSE_S)
    states = [breaker.state]
    with pytest.raises(CircuitOpen):
        breaker.begin(FIRST_PAUSE_S)
    breaker.succeeded(1.0)
    assert breaker.since == 1.0
    breaker.begin(1.0)
    breaker.failed(1.0, "once")
    assert [*states, breaker.state] == ["probing", "closed"]


def test_pauses_double_up_to_the_longest(breaker: Breaker) -> None:
    opened(breaker, 0.0)
    now, pauses = 0.0, []
    for _ in range(9):
        pause = next(at / 100 for at in range(10_000) if _begins(breaker, now + at / 100))
        pauses.append(pause)
        now += pause
        breaker.failed(now, "still")
    assert pauses == [0.5, 1, 2, 4, 8, 16, MAX_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S]


def test_success_makes_pauses_short_again(breaker: Breaker) -> None:
    opened(breaker, 0.0)
    breaker.begin(1.0)
    breaker.failed(1.0, "still")
    breaker.begin(10.0)
    breaker.succeeded(10.0)
    opened(breaker, 20.0)
    assert _begins(breaker, 20.0 + FIRST_PAUSE_S)


def test_a_call_from_before_does_not_make_the_pause_longer(breaker: Breaker) -> None:
    opened(breaker, 0.0)
    breaker.failed(0.1, "begun before")
    assert _begins(breaker, FIRST_PAUSE_S)


def test_a_call_that_had_no_time_opens_nothing(breaker: Breaker) -> None:
    for _ in range(9):
        breaker.begin(0.0)
        breaker.failed(0.0, "late", is_fair=False)
    assert breaker.state == "closed"
    opened(breaker, 0.0)
    assert _begins(breaker, FIRST_PAUSE_S)
    breaker.failed(FIRST_PAUSE_S, "late", is_fair=False)
    assert not _begins(breaker, 2 * FIRST_PAUSE_S)


@pytest.mark.parametrize(("drawn", "pause"), [(0.0, 0.4), (1.0, 0.6)])
def test_part_of_a_pause_is_drawn(drawn: float, pause: float) -> None:
    breaker = Breaker(0.0, failures=3, draw=lambda: drawn)
    opened(breaker, 0.0)
    assert not _begins(breaker, pause - 0.01)
    assert _begins(breaker, pause + 0.01)


def _begins(breaker: Breaker, now: float) -> bool:
    try:
        breaker.begin(now)
    except CircuitOpen:
        return False
    return True
