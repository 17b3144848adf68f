"""Makes, reads and removes the files of a ring's nurseries; clients map them.

A nursery is a writer's segment of the store: a sparse file in which one process lays records. The ring's writer makes
it, under an id that is never used again, so a name means one file for good, and removes it when no record lies there
any more. What is free is given back to the kernel piece by piece (`punch`).

Any process of the user can cut such a file short at any instant, and whoever reads there through a mapping then gets
SIGBUS. So the ring's writer maps no nursery: it reads copies by descriptor. A reader looks at the size of a file before
it reads in place.
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
from mmcached.shm.segment.segment import Host, create_object, leftover_names, unlink
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import SegmentError, StaleHandle
from mmcached.wire.handle import RingAnnouncement

Bytes1D = npt.NDArray[np.uint8]
_logger = logging.getLogger(__name__)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BYTE = np.dtype(np.uint8)


def open_nursery(announcement: RingAnnouncement, nursery: int, *, is_writer: bool = False) -> Pages:
    """Map a nursery, without write permission but for its writer.

    Raises:
        StaleHandle: there is no such nursery: no record lies in it any more.
        SegmentError: no descriptor or address space is left for it, or the file is another user's.
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
    except ValueError as error:  # it is empty, or has become shorter between the two
        raise StaleHandle(f"nursery {nursery} has been cut short") from error
    finally:
        os.close(fd)


def view_of(pages: Pages, offset: int, nbytes: int) -> Bytes1D:
    """Return bytes of a mapped nursery, `(nbytes,)`; raise StaleHandle if its file is shorter than that by now."""
    end = offset + nbytes
    if pages.size() < end or len(pages) < end:
        raise StaleHandle(f"bytes {offset} to {end} were cut off from their nursery")
    return np.ndarray(nbytes, _BYTE, pages, offset)


def allocate(announcement: RingAnnouncement, nursery: int, begin: int, end: int) -> None:
    """Take memory for bytes of a nursery, so that no write there fails; raise OSError if there is none."""
    fd = open_own(SHM_DIR / announcement.nursery_name(nursery).lstrip("/"))
    try:
        os.posix_fallocate(fd, begin, end - begin)
    finally:
        os.close(fd)


class NurseryFiles(Closeable):
    """The nurseries of one ring as the ring's writer has them: open, and not mapped."""

    def __init__(self, announcement: RingAnnouncement, host: Host | None = None) -> None:
        self._announcement = announcement
        self._host = host or Host()
        self._fds: dict[int, int] = {}

    def create(self, nursery: int, nbytes: int, *, first_bytes: int) -> None:
        """Make the file of a nursery of up to `nbytes`, of which none has memory yet.

        Args:
            first_bytes: that will be used soon.
        Raises:
            SegmentError: there is no room for those, or no descriptor; nothing is left.
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
        """Open the nursery of a former writer; return its size in bytes, 0 if that cannot be, which the log says."""
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
        """Iterate over the ids of those that are open, as of now."""
        return iter(list(self._fds))

    def read_into(self, nursery: int, offset: int, buffer: Bytes1D) -> None:
        """Copy bytes of a nursery, `buffer.nbytes` of them; raise StaleHandle if they are not there."""
        fd, rest = self._fds.get(nursery), buffer.data
        while fd is not None and rest and (num_bytes := os.preadv(fd, [rest], offset)):
            rest, offset = rest[num_bytes:], offset + num_bytes
        if rest:
            raise StaleHandle(f"{len(rest)} bytes from {offset} on are not in nursery {nursery} any more")

    def check_size(self, nursery: int, nbytes: int) -> None:
        """Raise StaleHandle if a nursery is gone, or shorter than `nbytes`."""
        if self.nbytes(nursery) < nbytes:
            raise StaleHandle(f"nursery {nursery} has been cut short, or is gone")

    def punch(self, nursery: int, begin: int, end: int) -> None:
        """Give the memory of the whole pages between two offsets back; what is read there then is 0."""
        begin, end = -(-begin // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
        if begin < end and (fd := self._fds.get(nursery)) is not None:
            with contextlib.suppress(OSError):  # a kernel that refuses: the memory comes back with the whole file
                _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, begin, end - begin)

    def remove(self, nursery: int) -> None:
        """Give all memory back, remove the name and let go; who has mapped it keeps the mapping, of nothing."""
        if nursery in self._fds:
            self.punch(nursery, 0, self.nbytes(nursery))
            crash_point("nursery.before_unlink")
            os.close(self._fds.pop(nursery))
        unlink(self._announcement.nursery_name(nursery))

    def remove_others(self) -> None:
        """Remove the names of nurseries that were not adopted here: no record lies there that is found."""
        for nursery in nurseries_of(self._announcement):
            if nursery not in self._fds:  # without punching: a reader may have a lease
                unlink(self._announcement.nursery_name(nursery))

    def close(self, *, keeps_names: bool = False) -> None:
        """Remove the names, unless another writer is to adopt them; readers keep what they have mapped."""
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
