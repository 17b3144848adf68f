"""Holds the scheduler's leases: records that were found, until they are given back or every rank has read them.

    find ──> found ──item allocated──> in use by the step ──all ranks have read──> given back
               └──end of the step──> given back

A lease lasts as long as its `Hit`; a step whose reports do not all come keeps its leases for `max_steps` steps.
"""

from __future__ import annotations

from mmcached.client import Hit


class Leases:
    """The leases of one engine.

    Args:
        num_ranks: how many report each step.
        max_steps: for how many steps a lease is kept at most.
    """

    def __init__(self, num_ranks: int, max_steps: int) -> None:
        self._num_ranks = num_ranks
        self._max_steps = max_steps
        self._found: dict[str, Hit] = {}
        self._in_use: dict[int, dict[str, Hit]] = {}

    def __contains__(self, name: str) -> bool:
        """Return whether an item has been found in this step, and not been allocated yet."""
        return name in self._found

    @property
    def num_found(self) -> int:
        return len(self._found)

    @property
    def num_in_use(self) -> int:
        return sum(map(len, self._in_use.values()))

    def add(self, name: str, hit: Hit) -> None:
        """Keep what was found until the end of the step."""
        self._found[name] = hit

    def use(self, name: str, step: int) -> Hit | None:
        """Keep the lease of an item until all ranks have done the step; return it, or None if it has not been found."""
        hit = self._found.pop(name, None)
        if hit is not None:
            self._in_use.setdefault(step, {})[name] = hit
        return hit

    def give_back(self, name: str, step: int) -> None:
        """Give back what a step does not need after all."""
        self._in_use.get(step, {}).pop(name, None)

    def end_pass(self, step: int) -> None:
        """Give back what a step has not used, and what steps of long ago have."""
        self._found.clear()
        for old in [each for each in self._in_use if each <= step - self._max_steps]:
            del self._in_use[old]

    def end_step(self, step: int, num_ranks: int) -> None:
        """Take a report: give back what steps up to that one have read, if all ranks say so."""
        if num_ranks >= self._num_ranks:
            for done in [each for each in self._in_use if each <= step]:
                del self._in_use[done]

    def clear(self) -> None:
        """Give all back."""
        self._found.clear()
        self._in_use.clear()
