"""Counts what the records of one tenant take, and says which of them goes first when that is too much.

Two lines: what nobody has asked for yet goes while it takes more than a quarter of what the tenant may have, so that
what comes once leaves what is used. Knows nothing of rings. Invariant: a key stands in one of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

UNUSED_SHARE = 4


class TenantBooks:
    """What the records of one tenant take.

    Attributes:
        unused, used: bytes by key, of those that nobody has asked for, the oldest first; and of the others, the least
            recently used first.
    """

    def __init__(self) -> None:
        self.unused: OrderedDict[str, int] = OrderedDict()
        self.used: OrderedDict[str, int] = OrderedDict()
        self.num_bytes = self._num_unused_bytes = 0

    @property
    def key_to_bytes(self) -> dict[str, int]:
        return {**self.unused, **self.used}

    def has(self, key: str) -> bool:
        return key in self.unused or key in self.used

    def bytes_of(self, key: str) -> int:
        """Return what a record takes that is here."""
        return self.unused[key] if key in self.unused else self.used[key]

    def add(self, key: str, num_bytes: int) -> None:
        self.unused[key] = num_bytes
        self.num_bytes += num_bytes
        self._num_unused_bytes += num_bytes

    def touch(self, key: str) -> None:
        if (num_bytes := self.unused.pop(key, None)) is not None:
            self._num_unused_bytes -= num_bytes
            self.used[key] = num_bytes
        else:
            self.used.move_to_end(key)

    def first_to_go(self, quota: int, new_bytes: int) -> str:
        """Return the key of the record that goes first.

        Args:
            quota, new_bytes: what all may take, and what one takes for which there is to be room.
        """
        return next(self.in_order(quota, new_bytes))[0]

    def in_order(self, quota: int, new_bytes: int) -> Iterator[tuple[str, int]]:
        """Yield keys and bytes as they go, the first one first; see `first_to_go`."""
        is_much = self._num_unused_bytes + new_bytes > quota // UNUSED_SHARE
        first, second = (self.unused, self.used) if is_much else (self.used, self.unused)
        return chain(first.items(), second.items())

    def remove(self, key: str) -> int:
        """Forget a record; return what it took."""
        num_bytes = self.unused.pop(key, None)
        if num_bytes is not None:
            self._num_unused_bytes -= num_bytes
        else:
            num_bytes = self.used.pop(key)
        self.num_bytes -= num_bytes
        return num_bytes
