"""Lists the engines that this frontend knows, and says which of them are ready.

    hello --> (row attached) --> ready --> gone

An engine is gone when the kernel says so (its lock byte is free), when another process has taken its place, or when its
connection is closed; never by silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class EngineLink:
    """One engine process.

    Attributes:
        peer: the present connection; it changes when the engine connects anew.
    """

    peer: bytes
    index: int
    incarnation: int
    is_ready: bool = False


class EngineLinks:
    """All engines by incarnation."""

    def __init__(self) -> None:
        self._links: dict[int, EngineLink] = {}

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[EngineLink]:
        return iter(list(self._links.values()))

    def add(self, link: EngineLink) -> None:
        self._links[link.incarnation] = link

    def get(self, incarnation: int) -> EngineLink | None:
        return self._links.get(incarnation)

    def remove(self, link: EngineLink) -> None:
        self._links.pop(link.incarnation, None)

    def by_peer(self, peer: bytes) -> EngineLink | None:
        return next((link for link in self if link.peer == peer), None)

    def by_index(self, index: int) -> EngineLink | None:
        return next((link for link in self if link.index == index), None)

    def choose(self, num_open: Callable[[EngineLink], int]) -> EngineLink | None:
        """Return the ready engine with the fewest open requests; None if none is ready."""
        return min((link for link in self if link.is_ready), key=num_open, default=None)
