"""How many lines one peer can cause, through both loggers, as set up in a role."""

from __future__ import annotations

import logging

import structlog

from mmcached.cli.logs.limit import MAX_PEERS, WINDOW_S, LogLimit
from tests.cli.logs.conftest import SetUp
from tests.clock import Clock


def test_a_peer_that_floods_gets_its_lines_and_no_more_and_another_has_its_own(set_up: SetUp) -> None:
    found, log = set_up(), structlog.get_logger("mmcached.frontend")
    for number in range(100):
        log.warning("bad message", peer="a", reason=str(number))
    log.warning("bad message", peer="b")
    log.warning("engine lost", peer="a")
    assert [(line["event"], line["peer"]) for line in found.records()] == [
        *[("bad message", "a")] * 10,
        ("bad message", "b"),
        ("engine lost", "a"),
    ]


def test_lines_of_the_standard_library_are_bounded_too(set_up: SetUp) -> None:
    found = set_up()
    for number in range(100):
        logging.getLogger("mmcached.worker").warning("worker %d dropped a message: %s", 0, number)
    assert [line["event"] for line in found.records()] == [f"worker 0 dropped a message: {n}" for n in range(10)]


def test_the_next_line_says_how_many_were_left_out() -> None:
    clock = Clock(tick_s=0.0)
    limit = LogLimit(2, clock=clock)
    taken = [limit.count_line(("frontend", "bad"), {"peer": "a"}) for _ in range(5)]
    assert taken == [0, 0, None, None, None]
    clock.now += WINDOW_S
    assert [limit.count_line(("frontend", "bad"), {"peer": "a"}) for _ in range(3)] == [3, 0, None]


def test_connecting_anew_for_each_message_gains_nothing() -> None:
    limit = LogLimit(2, clock=Clock(tick_s=0.0))
    taken = [limit.count_line(("frontend", "bad"), {"peer": str(number)}) for number in range(1000)]
    assert sum(left_out is not None for left_out in taken) == MAX_PEERS + 2
