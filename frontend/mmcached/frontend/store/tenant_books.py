"""Bytes of one tenant's records, and the order in which they are evicted beyond the quota.

Two queues: records that were never asked for go first while they take more than a quarter of the quota, so that a burst
of unused records does not evict used ones. Does not know rings. Invariant: a key is in exactly one queue.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain

MAX_UNUSED_SHARE = 0.25
"""Share of the quota beyond which records that were never asked for go first."""


class TenantBooks:
    """Sizes of one tenant's records in bytes, by key.

    Attributes:
        unused: Records that were never asked for, the oldest first.
        used: The other records, the least recently used first.
        num_bytes: Total of both.
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
        """Return the key of the record to evict first.

        Args:
            quota: Maximum bytes of all records.
            new_bytes: Size of the record that needs space.
        """
        return next(self.in_order(quota, new_bytes))[0]

    def in_order(self, quota: int, new_bytes: int) -> Iterator[tuple[str, int]]:
        """Yield keys and sizes in eviction order; see `first_to_go`."""
        is_much = self._num_unused_bytes + new_bytes > MAX_UNUSED_SHARE * quota
        first, second = (self.unused, self.used) if is_much else (self.used, self.unused)
        return chain(first.items(), second.items())

    def remove(self, key: str) -> int:
        """Remove a record; return its size in bytes."""
        num_bytes = self.unused.pop(key, None)
        if num_bytes is not None:
            self._num_unused_bytes -= num_bytes
        else:
            num_bytes = self.used.pop(key)
        self.num_bytes -= num_bytes
        return num_bytes
