"""Turns the signals that end a process into a flag that its loop looks at."""

from __future__ import annotations

import signal
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class StopFlag:
    """The handlers of `STOP_SIGNALS`, installed in the main thread; `num_signals` counts what came.

    A SIGHUP that is ignored from the start stays ignored: so `nohup` wants it.
    """

    def __init__(self) -> None:
        self.num_signals = 0
        for each in STOP_SIGNALS:
            if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN:
                signal.signal(each, self._on_signal)

    @property
    def is_set(self) -> bool:
        return self.num_signals > 0

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.num_signals += 1
