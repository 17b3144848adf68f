"""What took too long is told once and kept for a while; what did not is neither."""

from __future__ import annotations

from mmcached.wire.slow_log import NUM_ROWS, SlowCall, SlowCalls, SlowLog
from tests.clock import Clock


def calls_of(slow_ms: float, told: list[object], clock: Clock) -> SlowCalls:
    return SlowCalls(slow_ms, lambda *text, **fields: told.append((*text, fields)), now=clock)


def test_what_takes_longer_is_one_line_and_is_kept() -> None:
    told: list[object] = []
    calls = calls_of(5.0, told, Clock(100.5))
    calls.note("put", 0.005, 1, nbytes=1)
    calls.note("put", 0.0051, 2, nbytes=2)
    assert told == [("slow put", {"took_ms": 5.1, "nbytes": 2})]
    assert list(calls.last) == [SlowCall(100_500, "put", 5_100_000, 2)]


def test_it_is_off_at_0() -> None:
    told: list[object] = []
    calls = calls_of(0.0, told, Clock())
    calls.note("step", 1000.0, 1)
    assert not told
    assert not calls.last


def test_the_newest_are_kept_and_go_through_words() -> None:
    clock = Clock(1.0)
    requests, puts = (calls_of(1.0, [], clock) for _ in range(2))
    for number in range(2 * NUM_ROWS):
        clock.now += 1
        (requests if number % 2 else puts).note("request" if number % 2 else "put", 2.0, number)
    found = SlowLog.of([*requests.last, *puts.last])
    assert [call.number for call in found.last] == list(reversed(range(NUM_ROWS, 2 * NUM_ROWS)))
    assert SlowLog.of_words(found.words()) == found
    assert SlowLog.of_words(SlowLog().words()) == SlowLog()
