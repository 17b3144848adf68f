"""A step queue begins, launches and commits steps one after the other, and withdraws a step with all later ones.

    begin -> (being built) --launch--> (in flight) --end_oldest--> (ended)
                  |                         |
                  +------- end_from --------+--> (ended, and with it every step that was begun later)

Beginning a step launches the one before. Knows nothing of what a manager does in a step. Invariant: numbers rise, and
at most the newest step is being built.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from mmcached.wire.errors import LocalProtocolError


class QueuedStep:
    """A step that has not ended; a manager adds what it does in it."""

    __slots__ = ("is_launched", "step_id")

    def __init__(self, step_id: int) -> None:
        self.step_id = step_id
        self.is_launched = False


StepT = TypeVar("StepT", bound=QueuedStep)


class StepQueue(Generic[StepT]):
    """All steps of one manager that have not ended, the oldest first.

    Attributes:
        newest: the last that was begun; None if all have ended.
        building: the step that is being built, if any.
    """

    def __init__(self) -> None:
        self.newest: StepT | None = None
        self.building: StepT | None = None
        self._open: deque[StepT] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[StepT]:
        return iter(self._open)

    def __reversed__(self) -> Iterator[StepT]:
        return reversed(self._open)

    def begin(self, step: StepT) -> None:
        """Begin a step; the one before is launched.

        Raises:
            LocalProtocolError: its number is not above those that have not ended.
        """
        if self.newest is not None:
            if step.step_id <= self.newest.step_id:
                raise LocalProtocolError(f"step {step.step_id} cannot begin: step {self.newest.step_id} has not ended")
            self.newest.is_launched = True
        self._open.append(step)
        self.newest = self.building = step

    def launch(self, step_id: int) -> None:
        """Put the newest step in flight.

        Raises:
            LocalProtocolError: it is not the newest, or has been launched.
        """
        step = self.building
        if step is None or step.step_id != step_id:
            raise LocalProtocolError(f"step {step_id} cannot be launched: being built is {step and step.step_id}")
        step.is_launched = True
        self.building = None

    def check_oldest(self, step_id: int) -> StepT:
        """Return the oldest step. Changes nothing.

        Raises:
            LocalProtocolError: another one is the oldest.
        """
        if not self._open or self._open[0].step_id != step_id:
            oldest = self._open[0].step_id if self._open else None
            raise LocalProtocolError(f"step {step_id} cannot be committed: the oldest that has not ended is {oldest}")
        return self._open[0]

    def end_oldest(self, step_id: int) -> StepT:
        """Take out the oldest step, and return it.

        Raises:
            LocalProtocolError: another one is the oldest; nothing has changed.
        """
        step = self.check_oldest(step_id)
        self._open.popleft()
        self._update()
        return step

    def end_from(self, step_id: int) -> list[StepT]:
        """Take out this step and all that were begun later; return them, the oldest first.

        Raises:
            LocalProtocolError: it has ended, or was never begun; nothing has changed.
        """
        if all(step.step_id != step_id for step in self._open):
            raise LocalProtocolError(
                f"step {step_id} cannot be withdrawn: open are {[step.step_id for step in self._open]}"
            )
        ended: list[StepT] = []
        while not ended or ended[-1].step_id != step_id:
            ended.append(self._open.pop())
        self._update()
        return ended[::-1]

    def _update(self) -> None:
        self.newest = self._open[-1] if self._open else None
        self.building = self.newest if self.newest is not None and not self.newest.is_launched else None
