"""Pins those pieces of mapped rings from which records are read again, so that a device reads them in place.

    a record is read ──> its piece has been read before? ──> wanted ──in the background, the lowest first──> pinned
                              └── no: noted                     └── no room: as it is, for good

Pinning a piece takes tens of milliseconds, in which other calls of CUDA may wait, for this process and others. So it is
done by pieces, of what is read again, up to a limit, and never in a step. A device that refuses one is asked for no
more. Nothing that is pinned is ever mapped for writing.

Any thread may call. Invariant: a piece is unpinned before it is unmapped.
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
"""Pinned in one call: a call for hundreds of GiB fails, and one for less than this gains nothing."""


class Part(NamedTuple):
    """A part of a record: its first and last byte but one in the pages, and whether they are pinned."""

    begin: int
    end: int
    is_pinned: bool


@dataclass(slots=True)
class _Known:
    """What is known of one mapping: its pieces that were read, and those that are pinned."""

    seen: set[int] = field(default_factory=set)
    pinned: set[int] = field(default_factory=set)


class PinnedPages:
    """The pinned pieces of all rings that this process reads.

    Args:
        max_bytes: pinned at a time; 0: nothing is.
        later: runs a call in another thread.
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
        """Bytes that are pinned, in whole pieces."""
        with self._lock:
            return self._num_pinned() * self._piece_bytes

    def parts_of(self, pages: Pages, begin: int, end: int) -> Iterator[Part]:
        """Yield the parts of a record between the borders of pieces, in order; note that it is being read.

        A copy never crosses a border: the runtime takes two pieces for two allocations.
        """
        size = self._piece_bytes
        for piece in range(begin // size, -(-end // size)):
            is_pinned = self._is_pinned(pages, piece)
            yield Part(max(begin, piece * size), min(end, (piece + 1) * size), is_pinned)

    def close(self) -> None:
        """Unpin everything; no copy may be under way. A second call does nothing."""
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
        # Not under our lock: `later` has one of its own, and in it pages may be unmapped, for which ours is taken.
        self._later(self._pin_next)
        return False

    def _has_room(self) -> bool:
        return self._num_pinned() + len(self._wanted) < self._max_pieces

    def _num_pinned(self) -> int:
        # A list: pages that are unmapped meanwhile change the dict.
        return sum(len(known.pinned) for known in list(self._known.values()))

    def _pin_next(self) -> None:
        """Pin the lowest of the pieces that are wanted."""
        with self._lock:
            if not self._wanted:
                return
            address, piece = place = min(self._wanted)
            pages = self._wanted[place]
        begin = piece * self._piece_bytes
        try:
            self._runtime.pin(address + begin, min(self._piece_bytes, pages.nbytes - begin))
        except Exception as error:  # whatever a driver raises: all goes on by way of other memory
            # As text: the error would keep what is being unmapped.
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
        """Unpin what lies there."""
        with self._lock:
            known = self._known.pop(address, _Known())
        for piece in known.pinned:
            self._runtime.unpin(address + piece * self._piece_bytes)
