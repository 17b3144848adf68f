"""Populates the page-table entries of a mapping before they are needed, by a thread, in steps.

The first touch of each page costs a fault; the first pass of writes through a fresh ring is several times slower for
it. `madvise` takes all the faults of a range at once, and does not change a byte. One thread goes over the range from
its start, where the writer starts too:

    begin        populated_bytes                         end
    ├▓▓▓▓▓▓▓▓▓▓▓▓┼ one step, inside the kernel ─┼░░░░░░░░┤

* A step runs without the interpreter's lock (`mmap.madvise` would keep it) and is short: a step holds the lock of the
  process's address space, and another thread's large allocation waits for it.
* A kernel without this advice (before Linux 5.14), or one that refuses it here, leaves `populated_bytes` where it is,
  and each page is populated at its first touch.

Knows nothing of rings. Invariant: while the thread runs the mapping stays, because the thread holds a buffer of it.
"""

from __future__ import annotations

import ctypes
import enum
import errno
import logging
import mmap
import os
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_LOG = logging.getLogger(__name__)
_MIB = 1 << 20
STEP_BYTES = 16 * _MIB


class Advice(enum.IntEnum):
    """Advice for `madvise`; the numbers are the kernel's (MADV_POPULATE_READ, MADV_POPULATE_WRITE)."""

    READ = 22
    WRITE = 23


Advise = Callable[[int, int, Advice], None]
"""`(address, nbytes, advice)`; raises OSError."""


def advise(address: int, nbytes: int, advice: Advice) -> None:
    """Call `madvise` without the interpreter's lock; raise OSError if the kernel refuses (EINVAL: unknown)."""
    if _madvise(address, nbytes, advice):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class Populator:
    """One pass over a range of a mapping; the thread starts at once and ends by itself.

    `close` it before the mapping is to be unmapped, unless the mapping may stay as long as the thread's buffer.

    Args:
        mapping: Mapping of a file that is as long as the mapping.
        begin: The first byte, at a page boundary.
        nbytes: Bytes from there on; None for all.
        advice: WRITE for a mapping that this process writes, READ for a read-only one.
        step_bytes: Bytes per call into the kernel, a multiple of the page size.
    """

    def __init__(
        self,
        mapping: mmap.mmap,
        advice: Advice,
        *,
        begin: int = 0,
        nbytes: int | None = None,
        step_bytes: int = STEP_BYTES,
        advise: Advise = advise,
    ) -> None:
        self._begin = begin
        self._nbytes = len(mapping) - begin if nbytes is None else nbytes
        self._advice = advice
        self._step_bytes = step_bytes
        self._advise = advise
        self._populated_bytes = 0
        self._stop = threading.Event()
        # A daemon: a process that ends without `close` must not wait for pages that will never be used.
        self._thread = threading.Thread(
            target=self._run, args=(np.frombuffer(mapping, np.uint8),), name="populate", daemon=True
        )
        self._thread.start()

    @property
    def populated_bytes(self) -> int:
        """Bytes from the first on that have been populated so far."""
        return self._populated_bytes

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended: everything is populated, or the kernel refuses more."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; return whether everything is populated. For benchmarks."""
        self._thread.join(timeout_s)
        return self._populated_bytes == self._nbytes

    def stop(self) -> None:
        """Make the thread end after its present step, without waiting for it. A second call changes nothing."""
        self._stop.set()

    def close(self) -> None:
        """End the thread after its present step and wait for it; it has then released the mapping. Idempotent."""
        self.stop()
        self._thread.join()

    def _run(self, buffer: npt.NDArray[np.uint8]) -> None:
        address = buffer.ctypes.data + self._begin
        while self._populated_bytes < self._nbytes and not self._stop.is_set():
            nbytes = min(self._step_bytes, self._nbytes - self._populated_bytes)
            try:
                self._advise(address + self._populated_bytes, nbytes, self._advice)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN):
                    continue
                # The text only: a log record that is kept would keep the error, its traceback and so the mapping.
                _LOG.debug("populated %d of %d bytes, no more: %s", self._populated_bytes, self._nbytes, error.strerror)
                return
            self._populated_bytes += nbytes


_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_madvise.restype = ctypes.c_int
