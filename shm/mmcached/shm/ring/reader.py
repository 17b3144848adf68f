"""Maps a ring read-only and hands out views of chunks, in place, kept alive by their holders.

The kernel enforces "read-only": the object is opened O_RDONLY and mapped PROT_READ. numpy refuses to write into a
view; torch has no such flag, so an in-place operation on a tensor made of one ends the process that does it with
SIGSEGV, and nobody else.

A view keeps the mapping alive, also after `close`; `when_unmapped` says when the last one is gone.

A nursery is mapped when a record in it is read for the first time, and unmapped with the last view after it is gone.

Knows nothing of messages or of what the bytes mean. A view may be made only under a lease of an entry of this process.
"""

from __future__ import annotations

import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.lookup import Lookup
from mmcached.shm.ring.slot_table import HAS_CRC32
from mmcached.shm.segment.layout import ALIGNMENT, MAX_BYTES
from mmcached.shm.segment.mapped import SHM_DIR, Tables, layout_of, open_control, open_data
from mmcached.shm.segment.nursery_files import open_nursery, view_of
from mmcached.shm.segment.pages import Pages
from mmcached.shm.segment.populate import Advice, Populator
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import ChecksumMismatch, LocalProtocolError, StaleHandle
from mmcached.wire.handle import Handle, RingAnnouncement

_BYTE = np.dtype(np.uint8)
MAX_NURSERIES = 64
"""Nurseries that one reader keeps mapped; each takes a descriptor. The oldest mapping makes room for the next."""


class RingReader(Closeable):
    """One mapping; made by `open`.

    Attributes:
        look: finds keys and judges handles by the writer's words.
    """

    def __init__(self, announcement: RingAnnouncement, mapping: Pages) -> None:
        self.announcement = announcement
        self.look = Lookup(Tables(mapping, layout_of(announcement)), announcement)
        self._pages: Pages | None = mapping
        self._populator: Populator | None = None
        self._nurseries: OrderedDict[int, Pages] = OrderedDict()
        self._mapping_turn = threading.Lock()

    @property
    def pages(self) -> Pages:
        """What is mapped.

        Raises:
            LocalProtocolError: this reader is closed.
        """
        if self._pages is None:
            raise LocalProtocolError("this reader is closed")
        return self._pages

    @classmethod
    def open(cls, announcement: RingAnnouncement, *, populate: bool = False) -> RingReader:
        """Map the data object of an announced ring.

        Args:
            populate: take the page faults of the whole mapping at once, in the background.
        Raises:
            SegmentError: it is gone.
            LayoutMismatch: its header contradicts the announcement or this version.
        """
        open_control(announcement).close()  # judges the header
        mapping = open_data(announcement)
        crash_point("reader.after_map")
        reader = cls(announcement, mapping)
        if populate:
            reader._populator = Populator(mapping, Advice.READ, nbytes=layout_of(announcement).data_object_bytes)
        return reader

    def when_unmapped(self, callback: Callable[[], object]) -> None:
        """Call back once when nobody can read through this mapping any more: after `close` and the last view.

        For locks that an entry has taken itself. It is called in any thread, and must neither block nor refer to this
        reader; not at the interpreter's exit, where the kernel drops the locks.
        """
        weakref.finalize(self.pages, callback).atexit = False

    def view(self, handle: Handle) -> npt.NDArray[np.uint8]:
        """Return the payload in place, `(nbytes,)`, read-only; valid for as long as the lease is not given back.

        Each call makes a new *holder*: everything derived from it (slices, dtype views, torch tensors) keeps it alive,
        so a `weakref.finalize` on it runs after the last of them has died, in any thread.

        Raises:
            StaleHandle: another ring or epoch, outside the ring, or the chunk holds something else by now.
            ChecksumMismatch: the bytes do not have the checksum that the writer has put there.
        """
        _ = self.pages
        self.check_place(handle)
        self.check_content(handle)
        holder = self.holder(handle)
        self.check(handle, holder)
        return holder

    def holder(self, handle: Handle) -> npt.NDArray[np.uint8]:
        """Return the holder of a payload, as of `view`; it is not read before there is a lease and `check` has passed.

        The handle is one that `look` has found, or of which `check_place` has passed.

        Raises:
            StaleHandle: its nursery is gone, and so the slot holds something else by now; or it was cut short.
            SegmentError: its nursery cannot be mapped: no descriptor or address space is left.
        """
        # Not a slice of one large array: numpy lets slices of slices refer to the first array, and the holder would
        # die early.
        if handle.nursery:
            pages = self._nursery(handle.nursery, handle.offset + handle.nbytes)
            return view_of(pages, handle.offset, handle.nbytes)
        if self._pages is None:
            raise LocalProtocolError("this reader is closed")
        return np.ndarray(handle.nbytes, _BYTE, self._pages, handle.offset)

    def check(self, handle: Handle, holder: npt.NDArray[np.uint8]) -> None:
        """Raise `ChecksumMismatch` if the bytes under a lease are not those that the writer has put there."""
        if self._pages is None:
            raise LocalProtocolError("this reader is closed")
        check = self.look.checksum(handle)
        if check and (actual := zlib.crc32(holder.data)) != check - HAS_CRC32:
            raise ChecksumMismatch(handle.slot, actual, check - HAS_CRC32)

    def check_place(self, handle: Handle) -> None:
        """Raise `StaleHandle` for a handle of another ring or epoch, or outside the ring."""
        names = self.announcement
        if handle.ring_id != names.ring_id or handle.epoch != names.epoch:
            raise StaleHandle(f"it is of ring {handle.ring_id}, epoch {handle.epoch}; mapped is {names.ring_id}")
        end = MAX_BYTES if handle.nursery else names.data_bytes
        is_inside = handle.offset % ALIGNMENT == 0 and 1 <= handle.nbytes <= end - handle.offset
        if not is_inside or handle.slot >= names.num_slots:
            raise StaleHandle(f"bytes {handle.offset} to {handle.offset + handle.nbytes} are not a payload of the ring")

    def check_content(self, handle: Handle) -> None:
        """Raise `StaleHandle` if the slot of a handle holds something else by now."""
        if self.look.check_of(handle) is None:
            raise StaleHandle(f"slot {handle.slot} does not hold generation {handle.generation}")

    def close(self) -> None:
        """Make no more views. Mapping and locks go with the last view, at once if there is none."""
        if self._populator is not None:
            self._populator.close()
            self._populator = None
        self.look.close()
        self._nurseries.clear()
        self._pages = None

    def _nursery(self, nursery: int, end: int) -> Pages:
        """Return a mapped nursery, mapped anew if it was shorter than `end` before; errors as of `holder`."""
        pages = self._nurseries.get(nursery)
        if pages is None or len(pages) < end:
            with self._mapping_turn:
                for known in list(self._nurseries):
                    if not (SHM_DIR / self.announcement.nursery_name(known).lstrip("/")).exists():
                        self._nurseries.pop(known, None)
                while len(self._nurseries) >= MAX_NURSERIES:
                    self._nurseries.popitem(last=False)
                pages = open_nursery(self.announcement, nursery)
                # The entry whose leases cover this mapping too lives as long as the ring's: see `when_unmapped`.
                pages.kept = self.pages
                self._nurseries[nursery] = pages
        return pages
