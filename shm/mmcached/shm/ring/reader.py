"""Maps a ring read-only and returns views of chunks, in place; a view's base array keeps the memory mapped.

The kernel enforces read-only access: the object is opened O_RDONLY and mapped PROT_READ. numpy refuses to write into a
view; torch has no such flag, so an in-place operation on a tensor made of a view ends the process that executes it with
SIGSEGV, and no other process.

A view keeps the mapping alive, also after `close`; `when_unmapped` reports the end of the last view.

A nursery (a client's segment for large records) is mapped when a record in it is read for the first time. Its mapping
is dropped after its file has been removed, and unmapped with its last view.

A view may be made only under a lease of an entry of this process.
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
"""Nurseries that one reader keeps mapped. At the limit the oldest mapping is dropped for the next one."""


class RingReader(Closeable):
    """One mapping; created by `open`.

    Attributes:
        look: Finds keys and checks handles in the writer's words.
        nurseries: The mapped nurseries by their ids.
    """

    def __init__(self, announcement: RingAnnouncement, mapping: Pages) -> None:
        self.announcement = announcement
        self.look = Lookup(Tables(mapping, layout_of(announcement)), announcement)
        self._pages: Pages | None = mapping
        self._populator: Populator | None = None
        self.nurseries: OrderedDict[int, Pages] = OrderedDict()
        self._mapping_turn = threading.Lock()

    @property
    def pages(self) -> Pages:
        """The mapped data object.

        Raises:
            LocalProtocolError: This reader is closed.
        """
        if self._pages is None:
            raise LocalProtocolError("this reader is closed")
        return self._pages

    @classmethod
    def open(cls, announcement: RingAnnouncement, *, populate: bool = False) -> RingReader:
        """Map the data object of an announced ring.

        Args:
            populate: Take the page faults of the whole mapping at once, in the background.

        Raises:
            SegmentError: The object is missing.
            LayoutMismatch: Its header contradicts the announcement or this version.
        """
        open_control(announcement).close()  # checks the header
        mapping = open_data(announcement)
        crash_point("reader.after_map")
        reader = cls(announcement, mapping)
        if populate:
            reader._populator = Populator(mapping, Advice.READ, nbytes=layout_of(announcement).data_object_bytes)
        return reader

    def when_unmapped(self, callback: Callable[[], object]) -> None:
        """Call back once when nothing reads through this mapping any more: after `close` and the last view.

        For the locks that an entry of this process holds. The callback runs in any thread, and must neither block nor
        refer to this reader; it does not run at the interpreter's exit, where the kernel drops the locks.
        """
        weakref.finalize(self.pages, callback).atexit = False

    def view(self, handle: Handle) -> npt.NDArray[np.uint8]:
        """Return the payload in place, `(nbytes,)`, read-only; valid until the lease is given back.

        Each call makes a new *holder*, the base array: everything derived from it (slices, dtype views, torch tensors)
        keeps it alive, so a `weakref.finalize` on it runs after the last of them has died, in any thread.

        Raises:
            StaleHandle: Another ring or epoch, a place outside the ring, or the slot holds another record by now.
            ChecksumMismatch: The bytes do not have the checksum that the writer recorded.
        """
        _ = self.pages
        self.check_place(handle)
        self.check_content(handle)
        holder = self.holder(handle)
        self.check(handle, holder)
        return holder

    def holder(self, handle: Handle) -> npt.NDArray[np.uint8]:
        """Return a payload's base array, as `view` does; read it only under a lease and after `check` has passed.

        The handle must come from `look`, or have passed `check_place`.

        Raises:
            StaleHandle: Its nursery is missing, so the slot holds another record by now; or the nursery was truncated.
            SegmentError: Its nursery cannot be mapped: no descriptor or address space is left.
        """
        # Not a slice of one large array: numpy lets slices of slices refer to the first array, and the holder would die
        # early.
        if handle.nursery:
            pages = self.map_nursery(handle.nursery, handle.offset + handle.nbytes)
            return view_of(pages, handle.offset, handle.nbytes)
        if self._pages is None:
            raise LocalProtocolError("this reader is closed")
        return np.ndarray(handle.nbytes, _BYTE, self._pages, handle.offset)

    def check(self, handle: Handle, holder: npt.NDArray[np.uint8]) -> None:
        """Raise `ChecksumMismatch` if the bytes under a lease do not have the checksum that the writer recorded."""
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
        """Raise `StaleHandle` if the slot of a handle holds another record by now."""
        if self.look.check_of(handle) is None:
            raise StaleHandle(f"slot {handle.slot} does not hold generation {handle.generation}")

    def close(self) -> None:
        """Make no more views. The mapping is removed with the last view, at once if there is none."""
        if self._populator is not None:
            self._populator.close()
            self._populator = None
        self.look.close()
        self.nurseries.clear()
        self._pages = None

    def map_nursery(self, nursery: int, end: int) -> Pages:
        """Return a mapped nursery, mapped again if its mapping is shorter than `end`; raises as `holder` does."""
        pages = self.nurseries.get(nursery)
        if pages is None or len(pages) < end:
            with self._mapping_turn:
                for known in list(self.nurseries):
                    if not (SHM_DIR / self.announcement.nursery_name(known).lstrip("/")).exists():
                        self.nurseries.pop(known, None)
                while len(self.nurseries) >= MAX_NURSERIES:
                    self.nurseries.popitem(last=False)
                pages = open_nursery(self.announcement, nursery)
                # The entry whose leases cover this mapping too must live as long as the ring's mapping: see
                # `when_unmapped`.
                pages.kept = self.pages
                self.nurseries[nursery] = pages
        return pages
