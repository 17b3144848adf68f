"""How many lines one peer can cause, through both loggers, as set up in a role."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from mmcached.cli.logs.limit import MAX_PEERS, WINDOW_S, LogLimit
from mmcached.cli.logs.lines import set_up_logging
from mmcached.wire.config import ServiceConfig
from tests.clock import Clock

CONFIG = ServiceConfig(log_format="json")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    former, handlers, level = structlog.get_config(), logging.getLogger().handlers[:], logging.getLogger().level
    stream = io.StringIO()
    set_up_logging("frontend", CONFIG, stream=stream)
    yield stream
    structlog.configure(**former)
    logging.captureWarnings(False)
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_peer_that_floods_gets_its_lines_and_no_more_and_another_has_its_own(stream: io.StringIO) -> None:
    log = structlog.get_logger("mmcached.frontend")
    for number in range(100):
        log.warning("bad message", peer="a", reason=str(number))
    log.warning("bad message", peer="b")
    log.warning("engine lost", peer="a")
    assert [(line["event"], line["peer"]) for line in lines(stream)] == [
        *[("bad message", "a")] * 10,
        ("bad message", "b"),
        ("engine lost", "a"),
    ]


def test_lines_of_the_standard_library_are_bounded_too(stream: io.StringIO) -> None:
    for number in range(100):
        logging.getLogger("mmcached.worker").warning("worker %d dropped a message: %s", 0, number)
    assert [line["event"] for line in lines(stream)] == [f"worker 0 dropped a message: {n}" for n in range(10)]


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
