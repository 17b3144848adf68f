"""Decides when a dead role is restarted, and when it is given up. Does no I/O: time is an argument.

    died ... backoff ... started        each death within the window doubles the wait, up to a maximum
    died more than `max_restarts` times within the window: given up

>>> policy = RestartPolicy(max_restarts=3, window_s=60.0, backoff_s=0.5, backoff_max_s=2.0)
>>> [policy.died(now) for now in (0.0, 1.0, 2.0, 3.0)]
[0.5, 1.0, 2.0, None]
>>> policy.died(100.0)
0.5
"""

from __future__ import annotations

import sys

from mmcached.wire.config import ServiceConfig


class RestartPolicy:
    def __init__(self, *, max_restarts: int, window_s: float, backoff_s: float, backoff_max_s: float) -> None:
        self._max_restarts = max_restarts
        self._window_s = window_s
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._deaths: list[float] = []

    @classmethod
    def from_config(cls, config: ServiceConfig, *, gives_up: bool = True) -> RestartPolicy:
        """Return the policy of a role; without `gives_up` it is restarted forever."""
        return cls(
            max_restarts=config.max_restarts if gives_up else sys.maxsize,
            window_s=config.restart_window_s,
            backoff_s=config.restart_backoff_s,
            backoff_max_s=config.restart_backoff_max_s,
        )

    def died(self, now: float) -> float | None:
        """Record a death; return the seconds until the restart, or None to give up."""
        self._deaths = [at for at in self._deaths if now - at < self._window_s]
        self._deaths.append(now)
        if len(self._deaths) > self._max_restarts:
            return None
        return self.backoff_s(len(self._deaths))

    def forgive(self) -> None:
        """Forget all deaths, after their cause was found and fails alone from now on."""
        self._deaths.clear()

    def backoff_s(self, num_failures: int) -> float:
        """Return the seconds to wait after `num_failures` (at least 1) failures in a row."""
        return min(self._backoff_max_s, self._backoff_s * 2.0 ** min(num_failures - 1, 32))
