"""The engines that are connected to this frontend, and how far each has come in attaching to the ring.

    hello --> (row attached) --> ready --> dead
An engine is dead when the kernel says so (its lock byte is free) or its connection is gone; never by silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mmcached.wire.errors import ServiceUnavailable


@dataclass(slots=True)
class EngineLink:
    """One engine. `row` and `nonce` are its row of the ring once attached; None without a ring."""

    peer: bytes
    incarnation: int
    row: int | None = None
    nonce: int | None = None
    is_ready: bool = False


class EngineLinks:
    """All connected engines by connection."""

    def __init__(self) -> None:
        self._links: dict[bytes, EngineLink] = {}

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[EngineLink]:
        return iter(list(self._links.values()))

    def hello(self, peer: bytes, incarnation: int) -> EngineLink:
        """Return the link of this connection, made anew if the engine behind it is another one."""
        link = self._links.get(peer)
        if link is None or link.incarnation != incarnation:
            link = self._links[peer] = EngineLink(peer, incarnation)
        return link

    def get(self, peer: bytes) -> EngineLink | None:
        return self._links.get(peer)

    def remove(self, peer: bytes) -> None:
        self._links.pop(peer, None)

    def with_row(self, row: int) -> EngineLink | None:
        return next((link for link in self if link.row == row), None)

    def choose(self, num_open: Callable[[bytes], int]) -> EngineLink:
        """Return the ready engine with the fewest open requests.

        Raises:
            ServiceUnavailable: none is ready.
        """
        ready = [link for link in self if link.is_ready]
        if not ready:
            raise ServiceUnavailable("no engine is ready yet; try again")
        return min(ready, key=lambda link: num_open(link.peer))
