"""A clock that a test moves."""

from __future__ import annotations


class Clock:
    """Seconds that stand still until a test moves `now`; with `tick_s`, each look moves them so far."""

    def __init__(self, now: float = 0.0, *, tick_s: float = 0.0) -> None:
        self.now = now
        self.tick_s = tick_s

    def __call__(self) -> float:
        self.now += self.tick_s
        return self.now
