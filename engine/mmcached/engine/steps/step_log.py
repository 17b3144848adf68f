"""Step log: makes a manager's step a transaction; notices sent to the workers count as done once it is committed.

    (none) --begin--> open --commit | withdraw--> (none)

    notice:  add --> pending --take_notices--> sent with the open step --commit--> (gone)
                       |^                         |
                       |+------- withdraw --------+    the step failed: perhaps no worker has done it
                       +--discard--> (gone)

Sending a notice twice is harmless; never sending it would leak the content that it names.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from mmcached.wire.errors import LocalProtocolError

Notice = TypeVar("Notice", bound=Hashable)


class StepLog(Generic[Notice]):
    """The open step of a manager, at most one, and its notices in order."""

    def __init__(self) -> None:
        self._step_id: int | None = None
        self._pending: dict[Notice, None] = {}
        self._sent: dict[Notice, None] = {}

    @property
    def is_open(self) -> bool:
        return self._step_id is not None

    def begin(self, step_id: int) -> None:
        """Open a step; raises `LocalProtocolError` if another step is open."""
        if self._step_id is not None:
            raise LocalProtocolError(f"step {step_id} cannot begin: step {self._step_id} has not ended")
        self._step_id = step_id

    def check_open(self, step_id: int) -> None:
        if self._step_id != step_id:
            raise LocalProtocolError(f"step {step_id} cannot end: the open step is {self._step_id}")

    def commit(self, step_id: int) -> None:
        """End the step: notices sent with it are done. Raises as `check_open`."""
        self.check_open(step_id)
        self._step_id = None
        self._sent.clear()

    def withdraw(self, step_id: int) -> None:
        """End the step: notices sent with it are pending again, before all others. Raises as `check_open`."""
        self.check_open(step_id)
        self._step_id = None
        self._pending = {**self._sent, **self._pending}
        self._sent.clear()

    # ---- notices

    def add(self, notice: Notice) -> None:
        self._pending[notice] = None

    def discard(self, notice: Notice) -> None:
        self._pending.pop(notice, None)

    def take_notices(self) -> list[Notice]:
        """Return and clear the pending notices; outside a step the caller must ensure delivery."""
        notices = list(self._pending)
        if self.is_open:
            self._sent.update(self._pending)
        self._pending.clear()
        return notices

    def pending(self) -> list[Notice]:
        return list(self._pending)

    def unconfirmed(self) -> set[Notice]:
        """Return the notices that are pending, or were sent with the open step."""
        return self._pending.keys() | self._sent.keys()
