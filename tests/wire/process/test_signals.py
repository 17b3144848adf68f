"""Signals that ask a process to stop only set a flag."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator

import pytest

from mmcached.wire.process.signals import STOP_SIGNALS, StopFlag


@pytest.fixture
def handlers_restored() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in STOP_SIGNALS}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("handlers_restored")
def test_each_signal_counts() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the suite may run under nohup
    with StopFlag() as flag:
        assert not flag.is_set
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
        for number, signum in enumerate(signals, start=1):
            os.kill(os.getpid(), signum)
            assert flag.is_set
            assert flag.num_signals == number
    os.kill(os.getpid(), signal.SIGTERM)
    assert flag.num_signals == len(signals) + 1


@pytest.mark.usefixtures("handlers_restored")
def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopFlag() as flag:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not flag.is_set


@pytest.mark.usefixtures("handlers_restored")
def test_a_signal_ends_a_wait_for_good() -> None:
    with StopFlag() as flag:
        assert select.select([flag], [], [], 0)[0] == []
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(2):
            assert select.select([flag], [], [], 0)[0] == [flag]
