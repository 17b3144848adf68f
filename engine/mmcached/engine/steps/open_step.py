"""Which step a book has open. At most one: what is reserved meanwhile counts only once the step is committed.

(none) --begin--> open --end: commit or withdraw--> (none)
"""

from __future__ import annotations

from mmcached.wire.errors import LocalProtocolError


class OpenStep:
    """The guard of a book's `begin_step`, `commit` and `withdraw`."""

    def __init__(self) -> None:
        self._step_id: int | None = None

    @property
    def is_open(self) -> bool:
        return self._step_id is not None

    def begin(self, step_id: int) -> None:
        """Open a step.

        Raises:
            LocalProtocolError: another one is open.
        """
        if self._step_id is not None:
            raise LocalProtocolError(f"step {step_id} cannot begin: step {self._step_id} has not ended")
        self._step_id = step_id

    def end(self, step_id: int) -> None:
        """Close the step.

        Raises:
            LocalProtocolError: this step is not open; nothing has changed.
        """
        if self._step_id != step_id:
            raise LocalProtocolError(f"step {step_id} cannot end: open is {self._step_id}")
        self._step_id = None
