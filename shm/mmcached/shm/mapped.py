"""The two objects of a ring, opened and mapped; how they are created: `segment`.

ctl    read-write in all     words, and the file description that carries this process's byte locks
data   read-only in readers  the kernel enforces it
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import posix_ipc

from mmcached.shm import locks
from mmcached.shm.layout import PAGE_BYTES, Layout, SegmentHeader
from mmcached.wire.errors import LayoutMismatch, SegmentError
from mmcached.wire.handle import RingAnnouncement

SHM_DIR = Path("/dev/shm")


class Control:
    """The control object, mapped, and the file description that carries this process's byte locks on it.

    `words` is the object as aligned 64-bit words; who may write which: see `layout`.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self.fd = fd
        self.layout = layout
        self._mapping = map_object(fd, layout.ctl_bytes)
        self.words = memoryview(self._mapping).cast("Q")

    def cells(self) -> npt.NDArray[np.uint64]:
        """Return all cells as `(max_rows, num_slots)`, a live view. It keeps the mapping, but not the locks, alive."""
        layout = self.layout
        first = (layout.cell_word(0, 0) - layout.nonce_word(0)) % (layout.row_bytes // 8)
        words = np.frombuffer(self._mapping, np.uint64)[layout.nonce_word(0) : layout.first_index_word]
        return words.reshape(layout.max_rows, -1)[:, first : first + layout.num_slots]

    def index(self) -> memoryview:
        """Return the words of the key index, none if there is none; to be released before `close`."""
        first = self.layout.first_index_word
        return self.words[first : first + self.layout.index_words]

    def close(self) -> None:
        """Drop all locks, then the descriptor and the mapping. A second call changes nothing."""
        if self.fd < 0:
            return
        locks.unlock_all(self.fd)  # first: the mapping holds a duplicate of the descriptor, which would keep them
        os.close(self.fd)
        self.fd = -1
        self.words.release()
        del self._mapping


def open_control(announcement: RingAnnouncement) -> Control:
    """Open and map the control object of an announced ring; take no lock.

    Raises:
        SegmentError: it is gone.
        LayoutMismatch: its header contradicts this version, itself or the announcement.
    """
    fd = _open(announcement.ctl_name, read_only=False)
    try:
        header = SegmentHeader.parse(os.pread(fd, PAGE_BYTES, 0))
        header.check_announced(announcement)
        _check_size("ctl_bytes", fd, header.layout.ctl_bytes)
        return Control(fd, header.layout)
    except BaseException:
        os.close(fd)
        raise


def open_data(announcement: RingAnnouncement) -> mmap.mmap:
    """Open the data object read-only and map it without write permission; the kernel enforces both.

    Raises:
        SegmentError: it is gone.
        LayoutMismatch: its size is not the announced one.
    """
    fd = _open(announcement.data_name, read_only=True)
    try:
        _check_size("data_bytes", fd, announcement.data_bytes)
        return map_object(fd, announcement.data_bytes, mmap.PROT_READ)
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


def _check_size(field: str, fd: int, expected: int) -> None:
    size = os.fstat(fd).st_size
    if size != expected:
        raise LayoutMismatch(field, size, expected)


def map_object(fd: int, nbytes: int, prot: int = mmap.PROT_READ | mmap.PROT_WRITE) -> mmap.mmap:
    """Map an object.

    Raises:
        SegmentError: there is no address space for it.
    """
    try:
        return mmap.mmap(fd, nbytes, prot=prot)
    except OSError as error:
        raise SegmentError(
            f"{nbytes >> 20} MiB of shared memory could not be mapped ({error.strerror}): raise the limit of address "
            "space (ulimit -v), or lower mm_processor_cache_gb or store_gb",
            needed_bytes=nbytes,
        ) from error
