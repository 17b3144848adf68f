"""Opens and maps the two objects of a ring; `segment` creates them.

ctl    a reader maps only its own entry, so its stray writes reach no other. The writer maps the whole object, but reads
       only entries that were taken: an entry that was never taken has no memory yet. The file description carries this
       process's byte locks
data   read-only in readers; enforced by the kernel
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import posix_ipc

from mmcached.shm.files import locks
from mmcached.shm.segment.layout import FIRST_COUNT_WORD, PAGE_BYTES, Layout, SegmentHeader
from mmcached.shm.segment.pages import Pages
from mmcached.wire.errors import LayoutMismatch, SegmentError
from mmcached.wire.handle import RingAnnouncement

SHM_DIR = Path("/dev/shm")
_DAMAGED = "it was damaged; restart the service"


class Control:
    """Control object: the file description that carries this process's byte locks on it, and the mapped part.

    `words` is the mapped part, as aligned 64-bit words; empty at first.
    """

    def __init__(self, fd: int, layout: Layout) -> None:
        self.fd = fd
        self.layout = layout
        self._mapping: mmap.mmap | None = None
        self.words = memoryview(b"").cast("Q")

    def map_all(self) -> None:
        self._map(0, self.layout.ctl_bytes)

    def map_entry(self, reader_id: int) -> None:
        """Map one entry; raise SegmentError if there is no memory for it."""
        offset, nbytes = self.layout.entry_offset(reader_id), self.layout.entry_bytes
        try:
            os.posix_fallocate(self.fd, offset, nbytes)
        except OSError as error:
            reason = f"no memory for an entry of {nbytes >> 10} KiB in the ring ({error.strerror})"
            raise SegmentError(f"{reason}: make room in {SHM_DIR}") from error
        self._map(offset, nbytes)

    def _map(self, offset: int, nbytes: int) -> None:
        self._mapping = map_object(self.fd, nbytes, offset=offset)
        self.words = memoryview(self._mapping).cast("Q")

    def incarnation(self, reader_id: int) -> int:
        """Return the incarnation that an entry's word holds."""
        return int.from_bytes(os.pread(self.fd, 8, 8 * self.layout.incarnation_word(reader_id)), "little")

    def counts(self) -> npt.NDArray[np.uint64]:
        """Return a live view of all entries' counts, `(max_readers, num_slots, 2)`: returned and taken.

        Requires `map_all`. The view keeps the mapping alive, but not the locks.
        """
        layout = self.layout
        assert self._mapping is not None
        words = np.frombuffer(self._mapping, np.uint64)[
            layout.incarnation_word(0) : layout.incarnation_word(layout.max_readers)
        ]
        counts = words.reshape(layout.max_readers, -1)[:, FIRST_COUNT_WORD : FIRST_COUNT_WORD + 2 * layout.num_slots]
        return counts.reshape(layout.max_readers, layout.num_slots, 2)

    def close(self) -> None:
        """Drop all locks, then the descriptor and the mapping. A second call changes nothing."""
        if self.fd < 0:
            return
        locks.unlock_all(self.fd)  # first: the mapping holds a duplicate of the descriptor, which would keep them
        os.close(self.fd)
        self.fd = -1
        self.unmap()

    def unmap(self) -> None:
        """Release the words and the mapping; the locks stay."""
        self.words.release()
        self._mapping = None


def open_control(announcement: RingAnnouncement) -> Control:
    """Open the control object of an announced ring; map nothing, take no lock.

    Raises:
        SegmentError: It is missing.
        LayoutMismatch: Its header contradicts this version, itself or the announcement.
    """
    fd = _open(announcement.ctl_name, read_only=False)
    try:
        header = SegmentHeader.parse(os.pread(fd, PAGE_BYTES, 0))
        header.check_announced(announcement)
        LayoutMismatch.unless_equal("ctl_bytes", os.fstat(fd).st_size, header.layout.ctl_bytes, _DAMAGED)
        return Control(fd, header.layout)
    except BaseException:
        os.close(fd)
        raise


def open_data(announcement: RingAnnouncement, *, is_writer: bool = False) -> Pages:
    """Open and map the data object, read-only unless `is_writer`; raise as `open_control` does."""
    fd = _open(announcement.data_name, read_only=not is_writer)
    try:
        nbytes = layout_of(announcement).data_object_bytes
        LayoutMismatch.unless_equal("data_bytes", os.fstat(fd).st_size, nbytes, _DAMAGED)
        pages = map_object(fd, nbytes, prot=mmap.PROT_READ | (mmap.PROT_WRITE if is_writer else 0))
    finally:
        os.close(fd)
    if not is_writer:
        pages.list_records(announcement.data_bytes)
    return pages


def _open(name: str, *, read_only: bool) -> int:
    try:
        fd: int = posix_ipc.SharedMemory(name, read_only=read_only).fd
    except posix_ipc.ExistentialError as error:
        reason = "its service has ended, or it was deleted while the service runs; mmcached ping says so"
        raise SegmentError(f"{SHM_DIR}{name} is gone: {reason}") from error
    except posix_ipc.PermissionsError as error:
        raise SegmentError(f"{SHM_DIR}{name} belongs to another user; run both sides as one user") from error
    except OSError as error:
        raise SegmentError(f"{SHM_DIR}{name} cannot be opened: {error.strerror}") from error
    return fd


def layout_of(announcement: RingAnnouncement) -> Layout:
    return Layout(announcement.data_bytes, announcement.num_slots, announcement.max_readers, announcement.index_words)


class Tables:
    """The writer's words in a mapped data object, each table as a memoryview of 64-bit words.

    Attributes:
        index: Empty if the ring has no index.
    """

    def __init__(self, mapping: mmap.mmap, layout: Layout) -> None:
        whole = memoryview(mapping)
        self.board = whole[layout.board_offset : layout.slots_offset].cast("Q")
        self.slots = whole[layout.slots_offset : layout.index_offset].cast("Q")
        self.index = whole[layout.index_offset :][: 8 * layout.index_words].cast("Q")

    def close(self) -> None:
        """Release the memoryviews; the words in memory are unchanged."""
        for words in (self.board, self.slots, self.index):
            words.release()


def map_object(fd: int, nbytes: int, *, offset: int = 0, prot: int = mmap.PROT_READ | mmap.PROT_WRITE) -> Pages:
    """Map a part of an object; raise SegmentError if there is no address space for it."""
    try:
        return Pages(fd, nbytes, prot=prot, offset=offset)
    except OSError as error:
        raise SegmentError(
            f"{nbytes >> 20} MiB of shared memory could not be mapped ({error.strerror}): raise the limit of address "
            "space (ulimit -v), or lower store_gb (or mm_processor_cache_gb)",
            needed_bytes=nbytes,
        ) from error
