"""How a role hears that it should stop: SIGTERM and SIGINT set a flag that its loop looks at."""

from __future__ import annotations

import signal
from types import FrameType


class StopFlag:
    """Installs handlers for SIGTERM and SIGINT in the main thread. `num_signals` tells how often one came."""

    def __init__(self) -> None:
        self.num_signals = 0
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    @property
    def is_set(self) -> bool:
        return self.num_signals > 0

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.num_signals += 1
