"""Reads a file where it lies, in memory that another process has laid it into, as libraries read files.

    descriptor ──> mapped, not copied ──> one `InPlace` for each library that reads it

Knows nothing of what is in the file. A mapping, and its pages, go with the last reader.
"""

from __future__ import annotations

import io
import os
from mmap import PROT_READ, mmap

Contents = bytes | mmap
"""All bytes of a file."""


def contents_of(descriptor: int, num_bytes: int) -> Contents:
    """Return the bytes of a file in place. Nobody may shorten it while they are read: that ends the reading process."""
    return mmap(descriptor, num_bytes, prot=PROT_READ) if num_bytes else b""


_MAX_PLACE = 2**63 - 1
"""A larger one is no number in C."""


class InPlace(io.BufferedIOBase):
    """Reads a file; many may read one. Does what `io.BytesIO` does, which would copy what is no `bytes`.

    It is called by C libraries, and OpenCV goes on with the result of a call that has raised, which ends the process.
    So no call raises for the numbers that it is given.

    Args:
        first: where the file begins in `contents`, bytes.
    """

    def __init__(self, contents: Contents, first: int = 0) -> None:
        self._view = memoryview(contents)[first:]
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        end = len(self._view) if size is None or size < 0 else self._place + size
        piece = bytes(self._view[self._place : end])
        self._place += len(piece)
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place, which may lie behind the end, and return it; -1, as in C, if there is no such place."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: len(self._view)}.get(whence)
        if base is None or (whence == os.SEEK_SET and offset < 0) or base + offset > _MAX_PLACE:
            return -1
        self._place = max(0, base + offset)
        return self._place

    def tell(self) -> int:
        return self._place
