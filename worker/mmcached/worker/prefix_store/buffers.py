"""Memory for rows that are read, used again: fresh pages cost several times the copy itself.

Knows nothing of what is in it. Invariant: at most `keep_nbytes` wait here; what was lent and is not given back belongs
to whoever holds it.
"""

from __future__ import annotations

import numpy as np

_SMALLEST = 4096


class BufferPool:
    """Byte arrays of sizes that are powers of two."""

    def __init__(self, keep_nbytes: int) -> None:
        self.keep_nbytes = keep_nbytes
        self.kept_nbytes = 0
        self._kept: dict[int, list[np.ndarray]] = {}

    def take(self, nbytes: int) -> np.ndarray:
        """Return at least so many bytes, with anything in them."""
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        waiting = self._kept.get(size)
        if waiting:
            self.kept_nbytes -= size
            return waiting.pop()
        return np.empty(size, dtype=np.uint8)

    def give_back(self, buffer: np.ndarray) -> None:
        """Take a buffer back that nobody reads any more; drop it if enough of them wait."""
        if self.kept_nbytes + len(buffer) <= self.keep_nbytes:
            self.kept_nbytes += len(buffer)
            self._kept.setdefault(len(buffer), []).append(buffer)

    def clear(self) -> None:
        self._kept.clear()
        self.kept_nbytes = 0
