"""Memory mappings of a ring in this process; mappings of records are found by a record's address.

A component that registers such memory with a device must unregister it before it is unmapped. That happens with the
last view, in any thread.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable

import numpy as np
import numpy.typing as npt


class Pages(mmap.mmap):
    """Mapped memory.

    Attributes:
        address: Of the first byte, if the mapping holds records; else 0.
        nbytes: Bytes of records.
        kept: Other pages that stay mapped as long as these.
    """

    address = nbytes = 0
    kept: Pages | None = None
    _callbacks: set[Callable[[int], None]]

    def before_unmapping(self, callback: Callable[[int], None]) -> None:
        """Call back once, with the address, before the unmapping, in any thread; only if the mapping holds records."""
        self._callbacks.add(callback)

    def forget_callback(self, callback: Callable[[int], None]) -> None:
        self._callbacks.discard(callback)

    def list_records(self, nbytes: int) -> None:
        """Make these pages findable by addresses in their first `nbytes` bytes, until they are unmapped."""
        self.address = int(self.bytes_of(0, 1).__array_interface__["data"][0])
        self.nbytes = nbytes
        self._callbacks = set()
        _LIVING[self.address] = nbytes, weakref.ref(self)

    def bytes_of(self, begin: int, end: int) -> npt.NDArray[np.uint8]:
        """Return a view of bytes `[begin, end)`, `(end - begin,)`."""
        return np.frombuffer(self, np.uint8, end - begin, begin)

    def __del__(self) -> None:
        # Not a weak reference's callback: it would run when the `mmap` is unmapped already.
        if _LIVING.pop(self.address, None) is not None:
            for callback in list(self._callbacks):
                callback(self.address)


_LIVING: dict[int, tuple[int, weakref.ref[Pages]]] = {}
"""Bytes of records, and pages, by address. One key is set or removed at a time, so any thread may look."""


def find(address: int, nbytes: int) -> Pages | None:
    """Return the pages that contain these bytes of records, of which the caller holds a view; None if none do."""
    for begin, (length, reference) in list(_LIVING.items()):
        if begin <= address and address + nbytes <= begin + length:
            return reference()
    return None
