"""The keys that workers must drop, until they have been told for certain.

    add --> pending --take--> told --confirm--> (gone)
               |^               |
               |+---- retell ---+        the step that carried them failed: perhaps no worker has dropped them
               +--discard--> (gone)      the key is in use again: the next step encodes it anew in its place

Telling a worker twice is harmless, never telling it would keep the tensor for ever.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class FreedKeys(Generic[Key]):
    """An ordered set of keys, each told once per step at most."""

    def __init__(self) -> None:
        self._pending: dict[Key, None] = {}
        self._told: dict[Key, None] = {}

    def add(self, key: Key) -> None:
        self._pending[key] = None

    def discard(self, key: Key) -> None:
        self._pending.pop(key, None)

    def take(self, *, is_certain: bool) -> list[Key]:
        """Return and clear what is pending.

        Args:
            is_certain: it will be done, and no `confirm` will follow.
        """
        keys = list(self._pending)
        if not is_certain:
            self._told.update(self._pending)
        self._pending.clear()
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

    def pending(self) -> list[Key]:
        """Return what is to be told. Changes nothing."""
        return list(self._pending)

    def unconfirmed(self) -> set[Key]:
        """Return what is to be told, or was told and is not confirmed. Changes nothing."""
        return self._pending.keys() | self._told.keys()
