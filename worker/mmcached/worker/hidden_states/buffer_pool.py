"""Pool of byte buffers: fresh pages cost several times the work done with them, and pinned pages even more.

Invariant: at most `keep_nbytes` are pooled; a taken buffer belongs to the caller until it is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Generic, TypeVar

_SMALLEST = 4096

Buffer = TypeVar("Buffer", bound=Sized)


class BufferPool(Generic[Buffer]):
    """Buffers of bytes, in sizes that are powers of two; `make(nbytes)` creates one of exactly this length."""

    def __init__(self, keep_nbytes: int, make: Callable[[int], Buffer]) -> None:
        self.keep_nbytes = keep_nbytes
        self.kept_nbytes = 0
        self._make = make
        self._kept: dict[int, list[Buffer]] = {}

    def take_buffer(self, nbytes: int) -> Buffer:
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        waiting = self._kept.get(size)
        if waiting:
            self.kept_nbytes -= size
            return waiting.pop()
        return self._make(size)

    def give_back(self, buffer: Buffer) -> None:
        """Take back a buffer that is no longer read; drop it if the pool is full."""
        if self.kept_nbytes + len(buffer) <= self.keep_nbytes:
            self.kept_nbytes += len(buffer)
            self._kept.setdefault(len(buffer), []).append(buffer)

    def clear(self) -> None:
        self._kept.clear()
        self.kept_nbytes = 0
