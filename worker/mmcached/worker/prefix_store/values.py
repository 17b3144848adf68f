"""What is kept whole: the last value of a key, for one request or for all.

    (key, request id)    "per_request" and "list": until the request is released
    (key, None)          "global": until it is replaced

Everything is a copy, when it comes and when it goes. A tensor stays on its device until somebody asks for it: whoever
puts it does not wait. Knows nothing of rows. Invariant: at most `byte_budget` bytes.
"""

from __future__ import annotations

from mmcached.wire.errors import InvalidRequest, InvariantError, MissingRows
from mmcached.worker.prefix_store.ownership import owned

Owner = int | None
_Kept = tuple[object, int]


class ValueBook:
    """Values by key and owner, and what they were before the step at hand."""

    def __init__(self, byte_budget: int) -> None:
        self.byte_budget = byte_budget
        self.nbytes = 0
        self._values: dict[Owner, dict[str, _Kept]] = {}
        self._before: list[tuple[str, Owner, _Kept | None]] = []

    def put(self, key: str, owner: Owner, value: object) -> None:
        """Keep a copy in the place of the last one.

        Raises:
            InvalidRequest: it cannot be copied; or there is no room, then the last one is gone all the same, because
                it is no longer right.
        """
        kept = owned(value, key, on_cpu=False)
        before = self._values.get(owner, {}).get(key)
        self._before.append((key, owner, before))
        self._set(key, owner, None)
        if self.nbytes + kept[1] > self.byte_budget:
            limit = (
                f"bytes must fit beside other values: {self.nbytes} of value_byte_budget = {self.byte_budget} are taken"
            )
            raise InvalidRequest(key, kept[1], limit)
        self._set(key, owner, kept)

    def get(self, key: str, owner: Owner) -> object:
        """Return a copy, on the CPU.

        Raises:
            MissingRows: there is none.
        """
        kept = self._values.get(owner, {}).get(key)
        if kept is None:
            raise MissingRows(key, 0, 1)
        return owned(kept[0], key, on_cpu=True)[0]

    def commit(self) -> None:
        """What was put stays."""
        self._before.clear()

    def withdraw(self) -> None:
        """Undo what was put since the last commit."""
        for key, owner, before in reversed(self._before):
            self._set(key, owner, before)
        self._before.clear()

    def release(self, owner: Owner) -> None:
        """Forget what an owner has; nothing changes nothing."""
        for key in list(self._values.get(owner, {})):
            self._set(key, owner, None)
        self._before = [each for each in self._before if each[1] != owner]

    def forget_key(self, key: str) -> None:
        for owner in list(self._values):
            self._set(key, owner, None)
        self._before = [each for each in self._before if each[0] != key]

    def clear(self) -> None:
        self._values.clear()
        self._before.clear()
        self.nbytes = 0

    def check_integrity(self) -> None:
        """Raise `InvariantError` if bytes are counted that are not there, or more than there may be."""
        counted = sum(nbytes for values in self._values.values() for _, nbytes in values.values())
        if counted != self.nbytes or self.nbytes > self.byte_budget or {} in self._values.values():
            raise InvariantError(f"{counted} bytes of values, {self.nbytes} are counted, {self.byte_budget} allowed")

    def _set(self, key: str, owner: Owner, kept: _Kept | None) -> None:
        values = self._values.setdefault(owner, {})
        self.nbytes -= values.pop(key, (None, 0))[1]
        if kept is not None:
            values[key] = kept
            self.nbytes += kept[1]
        elif not values:
            del self._values[owner]
