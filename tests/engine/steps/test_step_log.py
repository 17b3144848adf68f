"""A notice is sent until it is certain that it was heard, unless it is withdrawn; steps do not overlap."""

from __future__ import annotations

import pytest

from mmcached.engine.steps.step_log import StepLog
from mmcached.wire.errors import LocalProtocolError


def log_of(*notices: str, step_id: int | None = None) -> StepLog[str]:
    log: StepLog[str] = StepLog()
    for notice in notices:
        log.add(notice)
    if step_id is not None:
        log.begin(step_id)
    return log


def test_what_is_taken_is_gone_and_each_notice_comes_once() -> None:
    log = log_of("b", "a", "b", step_id=0)
    assert log.pending() == ["b", "a"]
    assert (log.take_notices(), log.take_notices()) == (["b", "a"], [])
    assert log.unconfirmed() == {"a", "b"}
    log.commit(0)
    assert log.unconfirmed() == set()


def test_what_was_sent_in_vain_comes_again_first() -> None:
    log = log_of("a", step_id=0)
    log.take_notices()
    log.add("b")
    log.withdraw(0)
    assert log.take_notices() == ["a", "b"]


def test_what_was_taken_between_steps_never_comes_again() -> None:
    log = log_of("a")
    assert log.take_notices() == ["a"]
    log.begin(0)
    log.withdraw(0)
    assert log.unconfirmed() == set()


def test_what_is_discarded_is_not_sent() -> None:
    log = log_of("a", "b")
    log.discard("a")
    log.discard("never there")
    assert log.take_notices() == ["b"]


def test_steps_do_not_overlap() -> None:
    log = log_of("a")
    for end in (log.commit, log.withdraw, log.check_open):
        with pytest.raises(LocalProtocolError, match="the open step is None"):
            end(3)
    log.begin(3)
    log.take_notices()
    with pytest.raises(LocalProtocolError, match="step 4 cannot begin: step 3 has not ended"):
        log.begin(4)
    for end in (log.commit, log.withdraw, log.check_open):
        with pytest.raises(LocalProtocolError, match="the open step is 3"):
            end(4)
    assert log.is_open
    assert log.unconfirmed() == {"a"}
    log.commit(3)
    assert not log.is_open
