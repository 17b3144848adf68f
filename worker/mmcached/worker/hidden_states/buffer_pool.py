"""Uses memory again: fresh pages cost several times what is done with them, and pinned ones still more.

Knows nothing of what is in a buffer. Invariant: at most `keep_nbytes` wait here; a buffer that was taken and is not
given back belongs to its taker.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Generic, TypeVar

_SMALLEST = 4096

Buffer = TypeVar("Buffer", bound=Sized)


class BufferPool(Generic[Buffer]):
    """Buffers of bytes, in sizes that are powers of two.

    Args:
        make: returns a new buffer of so many bytes; its length is that number.
    """

    def __init__(self, keep_nbytes: int, make: Callable[[int], Buffer]) -> None:
        self.keep_nbytes = keep_nbytes
        self.kept_nbytes = 0
        self._make = make
        self._kept: dict[int, list[Buffer]] = {}

    def take(self, nbytes: int) -> Buffer:
        """Return at least so many bytes, with anything in them."""
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        waiting = self._kept.get(size)
        if waiting:
            self.kept_nbytes -= size
            return waiting.pop()
        return self._make(size)

    def give_back(self, buffer: Buffer) -> None:
        """Take a buffer back that nobody reads any more; drop it if enough of them wait."""
        if self.kept_nbytes + len(buffer) <= self.keep_nbytes:
            self.kept_nbytes += len(buffer)
            self._kept.setdefault(len(buffer), []).append(buffer)

    def clear(self) -> None:
        self._kept.clear()
        self.kept_nbytes = 0
