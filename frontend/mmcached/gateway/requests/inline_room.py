"""Bounds the bytes of items that travel to engines beside the ring, until their engine has answered.

An engine that is in a long step reads nothing meanwhile, and what it has read it keeps until it is encoded. A request
that would be one too many waits until another has been answered; one that is larger than all room goes alone. The
request that has come first goes first.

Knows nothing of engines and items; requests by number: the higher, the later it has come.
"""

from __future__ import annotations

from typing import Any

from mmcached.gateway.requests.waits import Verb, Wait, Waits


class InlineRoom:
    """Room for `max_bytes`, of which `num_bytes` are taken."""

    def __init__(self, max_bytes: int, waits: Waits[Any]) -> None:
        self._max_bytes = max_bytes
        self._waits = waits
        self._line: set[int] = set()
        self.num_bytes = 0

    def has_room(self, number: int, num_bytes: int) -> bool:
        """Return whether a request may take room, or needs none."""
        if not (num_bytes and self.num_bytes):
            return True
        return self.num_bytes + num_bytes <= self._max_bytes and all(number <= each for each in self._line)

    def wait(self, number: int) -> Verb[None]:
        """Wait until a request has given back room, or one before this one does not wait any more."""
        self._line.add(number)
        try:
            yield Wait({(self, number)})
        finally:
            self._line.discard(number)
            self._wake(number)

    def take(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        self.num_bytes -= num_bytes
        if num_bytes:
            self.wake()

    def wake(self) -> None:
        """Let all that wait ask again: their items may have to be made again first."""
        self._wake(0)

    def _wake(self, after: int) -> None:
        """Let those behind a number ask again, the first one first: it may leave room for the next."""
        for number in sorted(each for each in self._line if each > after):
            self._waits.wake((self, number))
