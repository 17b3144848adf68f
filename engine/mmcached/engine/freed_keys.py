"""The keys that workers must drop, until they have been told for certain.

    add --> pending --take--> told --confirm--> (gone)
               ^                |
               +----- retell ---+        the step that carried them failed: perhaps no worker has dropped them

Telling a worker twice is harmless, never telling it would keep the tensor for ever.
"""

from __future__ import annotations

from collections.abc import Container


class FreedKeys:
    """An ordered set of keys, each told once per step at most."""

    def __init__(self) -> None:
        self._pending: dict[str, None] = {}
        self._told: dict[str, None] = {}

    def add(self, key: str) -> None:
        self._pending[key] = None

    def take(self, present: Container[str]) -> list[str]:
        """Return and clear what is pending, but for keys that are present again: those will be overwritten."""
        keys = [key for key in self._pending if key not in present]
        self._pending.clear()
        self._told.update(dict.fromkeys(keys))
        return keys

    def confirm(self) -> None:
        """What was told has been done."""
        self._told.clear()

    def retell(self) -> None:
        """What was told has perhaps not been done: it is pending again."""
        self._pending = {**self._told, **self._pending}
        self._told.clear()

    def clear(self) -> None:
        self._pending.clear()
        self._told.clear()
