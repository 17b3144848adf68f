"""Creates, reads and removes the files of a ring's nurseries; clients map them.

A nursery is a writer's segment of the store: a sparse shared-memory file into which one client writes records. The
ring's writer creates it, under an id that is never used again, so a name always means the same file, and removes it
when it holds no more records. Free parts are returned to the kernel piece by piece (`punch`).

Any process of the user can truncate such a file at any instant, and a process that then reads there through a mapping
receives SIGBUS. So the ring's writer maps no nursery: it reads copies by descriptor. A reader checks the size of a file
before it reads in place.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mmcached.shm.crash_points import crash_point
from mmcached.shm.files.own_file import open_own
from mmcached.shm.segment.headroom import require_room
from mmcached.shm.segment.layout import PAGE_BYTES
from mmcached.shm.segment.mapped import SHM_DIR, map_object
from mmcached.shm.segment.pages import Pages
from mmcached.shm.segment.segment import HostCalls, create_object, leftover_names, unlink
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import SegmentError, StaleHandle
from mmcached.wire.handle import RingAnnouncement

Bytes1D = npt.NDArray[np.uint8]
_logger = logging.getLogger(__name__)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BYTE = np.dtype(np.uint8)


def open_nursery(announcement: RingAnnouncement, nursery: int, *, is_writer: bool = False) -> Pages:
    """Map a nursery, read-only unless `is_writer`.

    Raises:
        StaleHandle: The nursery does not exist (any more): it holds no records.
        SegmentError: No descriptor or address space is left for it, or the file belongs to another user.
    """
    name = announcement.nursery_name(nursery)
    try:
        fd = open_own(SHM_DIR / name.lstrip("/"))
    except FileNotFoundError as error:
        raise StaleHandle(f"nursery {nursery} is gone") from error
    except OSError as error:
        raise SegmentError(f"{SHM_DIR}{name} cannot be opened: {error.strerror or error}") from error
    try:
        return map_object(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if is_writer else 0))
    except ValueError as error:  # it is empty, or was truncated between fstat and mmap
        raise StaleHandle(f"nursery {nursery} has been cut short") from error
    finally:
        os.close(fd)


def view_of(pages: Pages, offset: int, nbytes: int) -> Bytes1D:
    """Return bytes of a mapped nursery, `(nbytes,)`; raise StaleHandle if the file has become shorter than that."""
    end = offset + nbytes
    if pages.size() < end or len(pages) < end:
        raise StaleHandle(f"bytes {offset} to {end} were cut off from their nursery")
    return np.ndarray(nbytes, _BYTE, pages, offset)


def allocate(announcement: RingAnnouncement, nursery: int, begin: int, end: int) -> None:
    """Allocate memory for bytes of a nursery, so that no write there fails; raise OSError if there is none."""
    fd = open_own(SHM_DIR / announcement.nursery_name(nursery).lstrip("/"))
    try:
        os.posix_fallocate(fd, begin, end - begin)
    finally:
        os.close(fd)


class NurseryFiles(Closeable):
    """Open, unmapped files of one ring's nurseries, for the ring's writer."""

    def __init__(self, announcement: RingAnnouncement, host: HostCalls | None = None) -> None:
        self._announcement = announcement
        self._host = host or HostCalls()
        self._fds: dict[int, int] = {}

    def create(self, nursery: int, nbytes: int, *, first_bytes: int) -> None:
        """Create the file of a nursery of up to `nbytes`, without memory.

        Args:
            first_bytes: Bytes that will be used soon; checked against the free memory.

        Raises:
            SegmentError: There is no memory for them, or no descriptor; nothing is left behind.
        """
        free, headroom = self._host.shm_free_bytes(), self._host.headroom_bytes()
        require_room(first_bytes, shm_free_bytes=free, headroom_bytes=headroom)
        name = self._announcement.nursery_name(nursery)
        fd = create_object(name)
        try:
            os.ftruncate(fd, nbytes)
        except BaseException:
            unlink(name)
            os.close(fd)
            raise
        self._fds[nursery] = fd
        crash_point("nursery.after_create")

    def adopt(self, nursery: int) -> int:
        """Open the nursery of a former writer; return its size in bytes. On failure log a warning and return 0."""
        if nursery not in self._fds:
            try:
                self._fds[nursery] = open_own(SHM_DIR / self._announcement.nursery_name(nursery).lstrip("/"))
            except OSError as error:
                _logger.warning("nursery %d cannot be taken over: %s", nursery, str(error))
        return self.nbytes(nursery)

    def nbytes(self, nursery: int) -> int:
        """Return the size of a nursery's file; 0 if it is not open here."""
        return os.fstat(self._fds[nursery]).st_size if nursery in self._fds else 0

    def __iter__(self) -> Iterator[int]:
        """Iterate over a copy of the ids of the open nurseries."""
        return iter(list(self._fds))

    def read_into(self, nursery: int, offset: int, buffer: Bytes1D) -> None:
        """Copy `buffer.nbytes` bytes of a nursery; raise StaleHandle if the file is missing or too short."""
        fd, rest = self._fds.get(nursery), buffer.data
        while fd is not None and rest and (num_bytes := os.preadv(fd, [rest], offset)):
            rest, offset = rest[num_bytes:], offset + num_bytes
        if rest:
            raise StaleHandle(f"{len(rest)} bytes from {offset} on are not in nursery {nursery} any more")

    def check_size(self, nursery: int, nbytes: int) -> None:
        """Raise StaleHandle if a nursery is missing, or shorter than `nbytes`."""
        if self.nbytes(nursery) < nbytes:
            raise StaleHandle(f"nursery {nursery} has been cut short, or is gone")

    def punch(self, nursery: int, begin: int, end: int) -> None:
        """Free the memory of the whole pages between two offsets; they then read as 0."""
        begin, end = -(-begin // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
        if begin < end and (fd := self._fds.get(nursery)) is not None:
            with contextlib.suppress(OSError):  # the kernel refused: the memory is freed with the whole file
                _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, begin, end - begin)

    def remove(self, nursery: int) -> None:
        """Free all memory and remove the name. Processes that have it mapped keep the mapping, without its content."""
        if nursery in self._fds:
            self.punch(nursery, 0, self.nbytes(nursery))
            crash_point("nursery.before_unlink")
            os.close(self._fds.pop(nursery))
        unlink(self._announcement.nursery_name(nursery))

    def remove_others(self) -> None:
        """Remove the names of nurseries that were not adopted here: no current record lies in them."""
        for nursery in nurseries_of(self._announcement):
            if nursery not in self._fds:  # without punching: a reader may have a lease
                unlink(self._announcement.nursery_name(nursery))

    def close(self, *, keeps_names: bool = False) -> None:
        """Remove the names, unless another writer is to adopt them; readers keep their mappings."""
        while self._fds:
            nursery, fd = self._fds.popitem()
            os.close(fd)
            if not keeps_names:
                unlink(self._announcement.nursery_name(nursery))


def nurseries_of(announcement: RingAnnouncement) -> list[int]:
    """Return the ids of the nurseries of a ring that have a name."""
    stem = announcement.nursery_name(0).removesuffix("0")
    numbers = (name.removeprefix(stem) for name in leftover_names(announcement.uid) if name.startswith(stem))
    return sorted(int(number) for number in numbers if number.isdecimal())


_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


def _fallocate(fd: int, mode: int, offset: int, nbytes: int) -> None:
    if _libc.fallocate(fd, mode, offset, nbytes):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
