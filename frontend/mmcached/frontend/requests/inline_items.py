"""Bounds the bytes of items that travel to engines beside the ring, until their requests have ended.

An engine that is in a long step reads nothing meanwhile, and what it has read it keeps until it is encoded. A request
that would be one too many waits until another has ended; one that is larger than all room goes alone. The request that
has come first goes first.

Knows nothing of engines and items; requests by number: the higher, the later it has come.
"""

from __future__ import annotations


class InlineItems:
    """Room for `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sent: dict[int, int] = {}
        self._waiting: dict[int, None] = {}
        self._ready: dict[int, None] = {}

    def has_to_wait(self, number: int, num_bytes: int) -> bool:
        """Return whether a request with so many bytes has to wait; `take_ready` will name it."""
        self._waiting.pop(number, None)
        others = sum(self._sent.values()) - self._sent.get(number, 0)
        is_first = not any(each < number for each in (*self._waiting, *self._ready))
        if not (num_bytes and others) or (is_first and others + num_bytes <= self._max_bytes):
            return False
        self._waiting[number] = None
        return True

    def is_waiting(self, number: int) -> bool:
        return number in self._waiting

    def sent(self, number: int, num_bytes: int) -> None:
        """Count what a request has taken along."""
        if num_bytes:
            self._sent[number] = num_bytes

    def leave(self, number: int) -> None:
        """Forget a request; an unknown one changes nothing."""
        if number not in self.numbers():
            return
        for of in (self._sent, self._waiting, self._ready):
            of.pop(number, None)
        self._ready |= self._waiting
        self._waiting.clear()

    def take_ready(self) -> list[int]:
        """Return and forget the requests that need wait no more, or are to ask again."""
        ready, self._ready = self._ready, {}
        return list(ready)

    def numbers(self) -> set[int]:
        """Return the requests of which something is noted."""
        return {*self._sent, *self._waiting, *self._ready}
