"""Stands in for the records of a ring until there is one: no key has a record."""

from __future__ import annotations

from mmcached.frontend.connections.rings import NoRing


class NoObjects:
    """Has the methods of `ObjectStoreWriter` that a store without a ring calls."""

    ring = NoRing()

    def find(self, key: str) -> None:
        return None

    def discard(self, key: str) -> None:
        pass

    def discard_expired(self, limit: int) -> list[str]:
        return []

    def clear(self) -> None:
        pass

    def __len__(self) -> int:
        return 0

    def close(self) -> None:
        pass
