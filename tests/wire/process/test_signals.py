"""Signals that ask a process to stop only set a flag."""

from __future__ import annotations

import os
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
    flag = StopFlag()
    assert not flag.is_set
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    for number, signum in enumerate(signals, start=1):
        os.kill(os.getpid(), signum)
        assert flag.is_set
        assert flag.num_signals == number


@pytest.mark.usefixtures("handlers_restored")
def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    flag = StopFlag()
    os.kill(os.getpid(), signal.SIGHUP)
    assert not flag.is_set
