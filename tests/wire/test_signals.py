"""Signals that ask a role to stop only set a flag."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from mmcached.wire.signals import StopFlag


@pytest.fixture
def handlers_restored() -> Iterator[None]:
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.mark.usefixtures("handlers_restored")
def test_each_signal_counts() -> None:
    flag = StopFlag()
    assert not flag.is_set
    for number, signum in enumerate((signal.SIGTERM, signal.SIGINT, signal.SIGTERM), start=1):
        os.kill(os.getpid(), signum)
        assert flag.is_set
        assert flag.num_signals == number
