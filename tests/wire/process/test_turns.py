"""Shares of a turn and guards around handlers."""

from __future__ import annotations

import logging

import pytest

from mmcached.wire.errors import PeerGone
from mmcached.wire.process.turns import Guard, TurnShare


def test_share_ends_by_number() -> None:
    assert len(list(TurnShare(7, 10.0))) == 7


def test_share_ends_by_time_but_never_before_the_first_message() -> None:
    assert len(list(TurnShare(1000, 0.0))) == 1


def test_fault_is_answered_counted_and_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    def handler(number: int) -> None:
        raise RuntimeError("SECRET of a user")

    guard = Guard()
    with caplog.at_level(logging.ERROR):
        error = guard.call("message of a client", handler, 3)
    assert error is not None
    assert error.code == "invariant_error"
    assert error.details == {"what": "message of a client", "error": "RuntimeError"}
    assert guard.num_faults == 1
    (record,) = caplog.records
    assert "test_turns.py" in vars(record)["where"]
    assert "SECRET" not in str(vars(record)) + str(error)


def test_exceptions_that_end_the_loop_are_raised() -> None:
    def handler() -> None:
        raise PeerGone("a step is past its deadline")

    guard = Guard(ends=(PeerGone,))
    with pytest.raises(PeerGone):
        guard.call("timer", handler)
    assert guard.num_faults == 0
