"""Computes how much more than its size a record is worth: its cost per byte relative to that of other records.

A record whose cost per byte is twice, four times, … the usual one is worth 1, 2, … more; all others, and those whose
cost is unknown, 0. So equal costs per byte change nothing, as those of pictures of one encoder nearly are.
"""

from __future__ import annotations

from math import log2

MAX_WORTH = 6
STEP = 0.002
"""Weight of a new record in the running mean of the logarithm of the cost per byte."""


class Worth:
    """The usual cost per byte of one store's puts."""

    def __init__(self) -> None:
        self._usual: float | None = None  # log2 of seconds per byte

    def count_put(self, cost_s: float, nbytes: int) -> int:
        """Add a put record to the usual cost, and return the record's worth, as `of`."""
        if cost_s <= 0 or nbytes <= 0:
            return 0
        own = log2(cost_s / nbytes)
        usual = own if self._usual is None else self._usual + STEP * (own - self._usual)
        self._usual = usual
        return _rounded(own - usual)

    def of(self, cost_s: float, nbytes: int) -> int:
        """Return the worth of a record now, 0 … `MAX_WORTH`; cost 0.0: unknown."""
        if cost_s <= 0 or nbytes <= 0 or self._usual is None:
            return 0
        return _rounded(log2(cost_s / nbytes) - self._usual)


def _rounded(above: float) -> int:
    return 0 if above < 0.5 else min(MAX_WORTH, round(above))
