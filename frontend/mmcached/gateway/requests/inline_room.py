"""Limits the bytes of items that travel to engines as frames, until their engine has answered.

An engine in a long step reads no messages, and keeps those that it has read until it has encoded the items. A request
beyond the limit waits until another one has been answered; a request larger than the limit is sent alone. The request
that came first is sent first.

Requests are given by number: a higher number came later.
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
        """Wait until another request has given back room, or an earlier request no longer waits."""
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
        """Wake all waiting requests: their items may have to be made again first."""
        self._wake(0)

    def _wake(self, after: int) -> None:
        """Wake the requests after a number, the first one first: it may leave room for the next."""
        for number in sorted(each for each in self._line if each > after):
            self._waits.wake((self, number))
