"""Turns the signals that end a process into a flag that its loop reads, and that wakes it."""

from __future__ import annotations

import os
import signal
from types import FrameType

from mmcached.wire.closeable import Closeable

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class StopFlag(Closeable):
    """The handlers of `STOP_SIGNALS`, installed in the main thread; `num_signals` counts signals.

    A SIGHUP that is ignored from the start stays ignored, as `nohup` requires. `close` leaves the handlers installed.
    """

    def __init__(self) -> None:
        self.num_signals = 0
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for each in STOP_SIGNALS:
            if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN:
                signal.signal(each, self._on_signal)

    @property
    def is_set(self) -> bool:
        return self.num_signals > 0

    def fileno(self) -> int:
        """Return a descriptor that becomes readable, and stays so, after the first signal."""
        return self._event

    def close(self) -> None:
        if self._event >= 0:
            os.close(self._event)
            self._event = -1

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.num_signals += 1
        if self._event >= 0:
            os.eventfd_write(self._event, 1)
