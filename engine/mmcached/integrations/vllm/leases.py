"""Holds the scheduler's leases on records until they are given back or every rank has read them.

    find ──> found ──item allocated──> in use by the step ──all ranks have read──> given back
               └──end of the step──> given back

A lease lasts as long as its `Hit`; a step with missing reports keeps its leases for `max_steps` steps.
"""

from __future__ import annotations

from mmcached.client import Hit


class Leases:
    """The leases of one engine.

    Args:
        num_ranks: Number of ranks that report each step.
        max_steps: The largest number of steps for which a lease is kept.
    """

    def __init__(self, num_ranks: int, max_steps: int) -> None:
        self._num_ranks = num_ranks
        self._max_steps = max_steps
        self._found: dict[str, Hit] = {}
        self._in_use: dict[int, dict[str, Hit]] = {}

    def __contains__(self, name: str) -> bool:
        """Return whether an item was found in this step, and not allocated yet."""
        return name in self._found

    @property
    def num_found(self) -> int:
        return len(self._found)

    @property
    def num_in_use(self) -> int:
        return sum(map(len, self._in_use.values()))

    def add(self, name: str, hit: Hit) -> None:
        """Keep a found record until the end of the step."""
        self._found[name] = hit

    def use(self, name: str, step: int) -> Hit | None:
        """Keep an item's lease until all ranks have done the step; return it, or None if the item was not found."""
        hit = self._found.pop(name, None)
        if hit is not None:
            self._in_use.setdefault(step, {})[name] = hit
        return hit

    def give_back(self, name: str, step: int) -> None:
        """Give back the lease of an item that a step no longer needs."""
        self._in_use.get(step, {}).pop(name, None)

    def end_pass(self, step: int) -> None:
        """Give back the leases that a step has not used, and those of steps older than `max_steps`."""
        self._found.clear()
        for old in [each for each in self._in_use if each <= step - self._max_steps]:
            del self._in_use[old]

    def end_step(self, step: int, num_ranks: int) -> None:
        """Give back the leases of steps up to `step` if all ranks have reported."""
        if num_ranks >= self._num_ranks:
            for done in [each for each in self._in_use if each <= step]:
                del self._in_use[done]

    def clear(self) -> None:
        self._found.clear()
        self._in_use.clear()
