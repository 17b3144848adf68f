"""Opens and maps the two objects of a ring; `segment` creates them.

ctl    the writer maps it whole, a reader only the entry that it has taken: its stray writes go no further.
       The file description carries this process's byte locks
data   read-only in readers; the kernel enforces it
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import posix_ipc

from mmcached.shm.files import locks
from mmcached.shm.segment.layout import FIRST_CELL_WORD, PAGE_BYTES, Layout, SegmentHeader, data_object_bytes
from mmcached.wire.errors import LayoutMismatch, SegmentError
from mmcached.wire.handle import RingAnnouncement

SHM_DIR = Path("/dev/shm")


class Control:
    """The control object: the file description that carries this process's byte locks on it, and what is mapped of it.

    `words` is what is mapped, as aligned 64-bit words; nothing at first.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self.fd = fd
        self.layout = layout
        self._mapping: mmap.mmap | None = None
        self.words = memoryview(b"").cast("Q")

    def map_all(self) -> None:
        self._map(0, self.layout.ctl_bytes)

    def map_entry(self, reader_id: int) -> None:
        self._map(self.layout.entry_offset(reader_id), self.layout.entry_bytes)

    def _map(self, offset: int, nbytes: int) -> None:
        self._mapping = map_object(self.fd, nbytes, offset=offset)
        self.words = memoryview(self._mapping).cast("Q")

    def incarnation(self, reader_id: int) -> int:
        """Return the incarnation that an entry names."""
        return int.from_bytes(os.pread(self.fd, 8, 8 * self.layout.incarnation_word(reader_id)), "little")

    def cells(self) -> npt.NDArray[np.uint64]:
        """Return all cells as `(max_readers, num_slots)`, a live view, of an object that is mapped whole.

        It keeps the mapping, but not the locks, alive.
        """
        layout = self.layout
        assert self._mapping is not None
        words = np.frombuffer(self._mapping, np.uint64)[
            layout.incarnation_word(0) : layout.incarnation_word(layout.max_readers)
        ]
        return words.reshape(layout.max_readers, -1)[:, FIRST_CELL_WORD : FIRST_CELL_WORD + layout.num_slots]

    def close(self) -> None:
        """Drop all locks, then the descriptor and the mapping. A second call changes nothing."""
        if self.fd < 0:
            return
        locks.unlock_all(self.fd)  # first: the mapping holds a duplicate of the descriptor, which would keep them
        os.close(self.fd)
        self.fd = -1
        self.words.release()
        self._mapping = None


def open_control(announcement: RingAnnouncement) -> Control:
    """Open the control object of an announced ring; map nothing, take no lock.

    Raises:
        SegmentError: it is gone.
        LayoutMismatch: its header contradicts this version, itself or the announcement.
    """
    fd = _open(announcement.ctl_name, read_only=False)
    try:
        header = SegmentHeader.parse(os.pread(fd, PAGE_BYTES, 0))
        header.check_announced(announcement)
        LayoutMismatch.unless_equal("ctl_bytes", os.fstat(fd).st_size, header.layout.ctl_bytes)
        return Control(fd, header.layout)
    except BaseException:
        os.close(fd)
        raise


def open_data(announcement: RingAnnouncement) -> mmap.mmap:
    """Open the data object read-only and map it without write permission; raise as `open_control` does."""
    fd = _open(announcement.data_name, read_only=True)
    try:
        nbytes = data_object_bytes(announcement.data_bytes, announcement.index_words)
        LayoutMismatch.unless_equal("data_bytes", os.fstat(fd).st_size, nbytes)
        return map_object(fd, nbytes, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def _open(name: str, *, read_only: bool) -> int:
    try:
        fd: int = posix_ipc.SharedMemory(name, read_only=read_only).fd
    except posix_ipc.ExistentialError as error:
        raise SegmentError(f"{SHM_DIR}{name} is gone: its service has ended; wait for a new announcement") from error
    except posix_ipc.PermissionsError as error:
        raise SegmentError(f"{SHM_DIR}{name} belongs to another user; run both sides as one user") from error
    return fd


def index_of(mapping: mmap.mmap, announcement: RingAnnouncement) -> memoryview:
    """Return the words of the key index in a mapped data object; none if there is none."""
    return memoryview(mapping)[announcement.data_bytes :].cast("Q")


def map_object(fd: int, nbytes: int, *, offset: int = 0, prot: int = mmap.PROT_READ | mmap.PROT_WRITE) -> mmap.mmap:
    """Map a part of an object; raise SegmentError if there is no address space for it."""
    try:
        return mmap.mmap(fd, nbytes, prot=prot, offset=offset)
    except OSError as error:
        raise SegmentError(
            f"{nbytes >> 20} MiB of shared memory could not be mapped ({error.strerror}): raise the limit of address "
            "space (ulimit -v), or lower mm_processor_cache_gb or store_gb",
            needed_bytes=nbytes,
        ) from error
