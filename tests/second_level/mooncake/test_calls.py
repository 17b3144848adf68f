"""Calls that do not come back, and who has made them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mmcached.second_level.backend import BackendError, BackendLate
from mmcached.second_level.mooncake.calls import BoundedCalls

SOON_S, LONG_S = 0.05, 30.0


class Stuck:
    """A call that comes back when it is let go."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.has_begun = threading.Semaphore(0)

    def __call__(self) -> str:
        self.has_begun.release()
        self.goes_on.wait()
        return "late"


@pytest.fixture
def calls() -> Iterator[BoundedCalls]:
    with BoundedCalls(2) as calls:
        yield calls


@pytest.fixture
def stuck(calls: BoundedCalls) -> Iterator[Stuck]:
    stuck = Stuck()
    yield stuck
    stuck.goes_on.set()
    await_none(calls)


def await_none(calls: BoundedCalls) -> None:
    deadline = time.monotonic() + LONG_S
    while len(calls):
        assert time.monotonic() < deadline, "a call has not come back"
        time.sleep(0.001)


def within(seconds: float) -> float:
    return time.monotonic() + seconds


def test_a_call_returns_or_raises_what_it_does(calls: BoundedCalls) -> None:
    assert calls.run(lambda: 7, within(LONG_S)) == 7
    with pytest.raises(ZeroDivisionError):
        calls.run(lambda: 1 // 0, within(LONG_S))
    await_none(calls)


def test_who_calls_goes_at_his_deadline_and_the_call_stays(calls: BoundedCalls, stuck: Stuck) -> None:
    with pytest.raises(BackendLate):
        calls.run(stuck, within(SOON_S))
    assert len(calls) == 1
    assert calls.run(lambda: "another", within(LONG_S)) == "another"


def test_when_all_are_stuck_the_answer_is_immediate_until_one_comes_back(calls: BoundedCalls, stuck: Stuck) -> None:
    for _ in range(2):
        with pytest.raises(BackendLate):
            calls.run(stuck, within(SOON_S))
    before = time.monotonic()
    for _ in range(100):
        with pytest.raises(BackendError, match="all 2 threads are stuck"):
            calls.run(stuck, within(LONG_S))
    assert time.monotonic() - before < LONG_S
    assert len(calls) == 2
    stuck.goes_on.set()
    await_none(calls)
    assert calls.run(lambda: "again", within(LONG_S)) == "again"


def test_who_finds_all_busy_waits_for_those_that_have_time(calls: BoundedCalls, stuck: Stuck) -> None:
    with ThreadPoolExecutor(3) as callers:
        first = [callers.submit(calls.run, stuck, within(LONG_S)) for _ in range(2)]
        for _ in first:
            assert stuck.has_begun.acquire(timeout=LONG_S)
        with pytest.raises(BackendLate):
            calls.run(lambda: "no room", within(SOON_S))
        third = callers.submit(calls.run, lambda: "third", within(LONG_S))
        stuck.goes_on.set()
        assert [one.result() for one in (*first, third)] == ["late", "late", "third"]


def test_closing_waits_for_nobody(calls: BoundedCalls, stuck: Stuck) -> None:
    with ThreadPoolExecutor(1) as callers:
        waiting = callers.submit(calls.run, stuck, within(LONG_S))
        assert stuck.has_begun.acquire(timeout=LONG_S)
        calls.close()
        with pytest.raises(BackendError, match="closed"):
            waiting.result()
    with pytest.raises(BackendError, match="closed"):
        calls.run(lambda: 1, within(LONG_S))
