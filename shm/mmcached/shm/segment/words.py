"""Orders a process's loads and stores of shared words.

*Giving back.* A reader raises its count only after it has read the bytes; the writer sees the count, then overwrites
the bytes. That needs a *release* store on the reader's side, and on the writer's side that the overwriting is not moved
before the load of the count.

*Taking.* A reader counts a lease, then checks whether the chunk is still valid; the writer marks a chunk as retired,
then checks whether it is leased. Each side stores and then loads another word, which every machine may reorder: both
need a *full fence* in between.

* x86-64: every aligned 8-byte store is a release store and every load an acquire load; `memoryview.cast("Q")[i] = v`
  is one `mov`. Any locked instruction is a full fence; taking a lock that is free is one.
* elsewhere: `__atomic_store_8(…, RELEASE)` and `atomic_thread_fence` of libatomic.
* neither: attaching is refused with `SegmentError`; items then travel inline.

Chosen once, at import. Python's own locks are no fence on AArch64 before CPython 3.14.
"""

from __future__ import annotations

import _thread
import ctypes
import logging
import platform
import sys
from typing import Protocol

from mmcached.wire.errors import SegmentError

_ACQUIRE, _RELEASE, _SEQ_CST = 2, 3, 5


class WordStore(Protocol):
    """Memory ordering on one kind of machine; `words` is a memoryview of format "Q": one aligned word per index."""

    name: str

    def store_release(self, words: memoryview, index: int, value: int) -> None:
        """Store one word after all loads and stores that this process has done before."""

    def load_fence(self) -> None:
        """Let no load or store that follows start before all earlier loads are done."""

    def full_fence(self) -> None:
        """Let no load or store that follows start before all earlier ones are done and visible to all processes."""


class PlainStore:
    name = "x86-64 aligned store"

    def store_release(self, words: memoryview, index: int, value: int) -> None:
        words[index] = value

    def load_fence(self) -> None:
        pass  # loads are done in their order, and before later stores

    def full_fence(self) -> None:
        # A new lock, which is certainly free: one compare-and-exchange. A shared lock could block, and would block for
        # ever in a signal handler that interrupts its holder.
        _thread.allocate_lock().acquire()


class LibatomicStore:
    """The C library of the compiler's atomics, through ctypes; raises OSError if it is missing."""

    name = "libatomic release store"

    def __init__(self) -> None:
        library = ctypes.CDLL("libatomic.so.1")
        self._store = library["__atomic_store_8"]  # as an attribute, a class would mangle the name
        self._store.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)
        self._store.restype = None
        self._fence = library["atomic_thread_fence"]
        self._fence.argtypes = (ctypes.c_int,)
        self._fence.restype = None

    def store_release(self, words: memoryview, index: int, value: int) -> None:
        if not 0 <= index < len(words):
            raise IndexError(f"word {index} of {len(words)}")
        self._store(ctypes.addressof(ctypes.c_uint64.from_buffer(words, 8 * index)), value, _RELEASE)

    def load_fence(self) -> None:
        self._fence(_ACQUIRE)

    def full_fence(self) -> None:
        self._fence(_SEQ_CST)


def choose(machine: str) -> WordStore | None:
    """Return the store for a machine as `platform.machine()` names it; None if it has none."""
    if sys.byteorder != "little" or sys.maxsize < 1 << 32:
        return None
    if machine in ("x86_64", "AMD64"):
        return PlainStore()
    try:
        return LibatomicStore()
    except OSError:
        return None


_CHOSEN = choose(platform.machine())
WORD_STORE_NAME = _CHOSEN.name if _CHOSEN else "none"
"""The store of this process; for the log and the metrics."""

logging.getLogger(__name__).info("control words: %s", WORD_STORE_NAME)


def require_word_store() -> WordStore:
    """Return the store chosen at import; raise SegmentError if there is none."""
    if _CHOSEN is None:
        raise SegmentError(
            f"no release store on {platform.machine()}: install libatomic (package libatomic1), or turn the ring off "
            "with mm_processor_cache_gb = 0",
            machine=platform.machine(),
        )
    return _CHOSEN
