"""Reads a file in place, in shared memory that another process has filled, with the interface of a file.

    descriptor ──> mapped, not copied ──> one `InPlace` for each library that reads it

A mapping, and its pages, go with the last reader.
"""

from __future__ import annotations

import io
import os
from mmap import PROT_READ, mmap

Contents = bytes | mmap
"""All bytes of a file."""


def contents_of(descriptor: int, num_bytes: int) -> Contents:
    """Return the bytes of a file in place. It must not be truncated meanwhile, which would end the reading process."""
    return mmap(descriptor, num_bytes, prot=PROT_READ) if num_bytes else b""


_MAX_PLACE = 2**63 - 1
"""The largest offset of a C library."""


class InPlace(io.BufferedIOBase):
    """A file object over bytes in place; many may share the bytes. `io.BytesIO` would copy all but `bytes`.

    C libraries call it, and OpenCV ignores a raised exception and then ends the process. So no call raises for any
    number.

    Args:
        first: Offset of the file in `contents`, in bytes.
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
        """Set the position, which may be behind the end, and return it; -1, as in C, for an invalid position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: len(self._view)}.get(whence)
        if base is None or (whence == os.SEEK_SET and offset < 0) or base + offset > _MAX_PLACE:
            return -1
        self._place = max(0, base + offset)
        return self._place

    def tell(self) -> int:
        return self._place
