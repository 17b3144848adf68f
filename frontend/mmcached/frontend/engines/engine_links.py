"""The engines that this frontend knows, and how far each has come in attaching to the ring.

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
        peer: its connection now; it changes when the engine connects anew.
        row, nonce: its row of the ring once attached; None before, or without a ring.
        next_barrier, barrier_wait_s: when to ask it next which leases have arrived, and how long to wait after that.
    """

    peer: bytes
    index: int
    incarnation: int
    row: int | None = None
    nonce: int | None = None
    next_barrier: float = 0.0
    barrier_wait_s: float = 1.0
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

    def by_row(self, row: int, nonce: int) -> EngineLink | None:
        return next((link for link in self if (link.row, link.nonce) == (row, nonce)), None)

    def choose(self, num_open: Callable[[EngineLink], int]) -> EngineLink | None:
        """Return the ready engine with the fewest open requests; None if none is ready."""
        return min((link for link in self if link.is_ready), key=num_open, default=None)
