"""Pins the pieces of mapped rings from which records are read again, so that a device reads them in place.

    a record is read ──> its piece was read before? ──> wanted ──in the background, the lowest first──> pinned
                              └── no: noted               └── over the limit: not pinned

Pinning a piece takes tens of milliseconds, in which other CUDA calls of this and other processes may wait. So pages are
pinned in pieces, only where records are read again, up to a limit, and never in a step. After a failure no further
piece is pinned. Pinned pages are never mapped for writing.

Any thread may call any method. Invariant: a piece is unpinned before it is unmapped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from mmcached.client.device.runtime import Runtime
from mmcached.shm.segment.pages import Pages, find

_LOG = logging.getLogger("mmcached.client")
PIECE_BYTES = 256 << 20
"""Bytes pinned in one call: a call for hundreds of GiB fails, and smaller calls than this gain no time."""


class RecordPart(NamedTuple):
    """A part of a record: its begin and end (exclusive) in the pages, and whether they are pinned."""

    begin: int
    end: int
    is_pinned: bool


@dataclass(slots=True)
class _Known:
    """State of one mapping: its pieces that were read, and those that are pinned."""

    seen: set[int] = field(default_factory=set)
    pinned: set[int] = field(default_factory=set)


class PinnedPages:
    """The pinned pieces of all rings that this process reads.

    Args:
        max_bytes: Maximum bytes pinned at a time; 0: no piece is pinned.
        later: Runs a call in another thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        max_bytes: int,
        later: Callable[[Callable[[], None]], object],
        piece_bytes: int,
    ) -> None:
        self._runtime = runtime
        self._max_pieces = max_bytes // piece_bytes
        self._later = later
        self._piece_bytes = piece_bytes
        self._known: dict[int, _Known] = {}  # by address of the pages
        self._wanted: dict[tuple[int, int], Pages] = {}  # by address and piece
        self._lock = threading.RLock()  # pages may be unmapped in the middle of any call, by the same thread

    @property
    def nbytes(self) -> int:
        """Pinned bytes, in whole pieces."""
        with self._lock:
            return self._num_pinned() * self._piece_bytes

    def parts_of(self, pages: Pages, begin: int, end: int) -> Iterator[RecordPart]:
        """Yield the parts of a record between the borders of pieces, in order; count its pieces as read.

        A copy never crosses a border: the runtime treats two pieces as two allocations.
        """
        size = self._piece_bytes
        for piece in range(begin // size, -(-end // size)):
            is_pinned = self._is_pinned(pages, piece)
            yield RecordPart(max(begin, piece * size), min(end, (piece + 1) * size), is_pinned)

    def close(self) -> None:
        """Unpin all pieces; no copy may be in progress. A second call does nothing."""
        with self._lock:
            self._max_pieces = 0
            self._wanted.clear()
            for address in list(self._known):
                if (pages := find(address, 1)) is not None:
                    pages.forget_callback(self._forget)
                self._forget(address)

    def _is_pinned(self, pages: Pages, piece: int) -> bool:
        with self._lock:
            known = self._known.get(pages.address)
            if known is None:
                known = self._known[pages.address] = _Known()
                pages.before_unmapping(self._forget)
            if piece in known.pinned:
                return True
            place = pages.address, piece
            is_read_again = piece in known.seen
            known.seen.add(piece)
            if not is_read_again or place in self._wanted or not self._has_room():
                return False
            self._wanted[place] = pages
        # Not under our lock: `later` has a lock of its own, under which pages may be unmapped, which takes ours.
        self._later(self._pin_next)
        return False

    def _has_room(self) -> bool:
        return self._num_pinned() + len(self._wanted) < self._max_pieces

    def _num_pinned(self) -> int:
        # A list: pages that are unmapped during the sum change the dict.
        return sum(len(known.pinned) for known in list(self._known.values()))

    def _pin_next(self) -> None:
        with self._lock:
            if not self._wanted:
                return
            address, piece = place = min(self._wanted)
            pages = self._wanted[place]
        begin = piece * self._piece_bytes
        try:
            self._runtime.pin(address + begin, min(self._piece_bytes, pages.nbytes - begin))
        except Exception as error:  # any error of a driver: copies go through other memory from now on
            # As text: the error would keep pages that are being unmapped.
            _LOG.warning("mmcached: no memory is pinned any more, and copies to the device take longer: %s", str(error))
            with self._lock:
                self._max_pieces = 0
                self._wanted.clear()
            return
        with self._lock:
            if self._wanted.pop(place, None) is not None:
                self._known[address].pinned.add(piece)
                return
        self._runtime.unpin(address + begin)  # closed meanwhile

    def _forget(self, address: int) -> None:
        with self._lock:
            known = self._known.pop(address, _Known())
        for piece in known.pinned:
            self._runtime.unpin(address + piece * self._piece_bytes)
