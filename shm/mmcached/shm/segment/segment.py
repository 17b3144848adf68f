"""Creates, names and removes the two shared-memory objects of a ring; `mapped` opens them.

Creation, in this order, because a sweep may run at any instant and removes objects that are not locked:

    1. ctl    O_CREX, mode 0600
    2. lock   byte 0 of ctl; then check that the name still leads to this inode; else 1 again, under another name
    3. ctl    its size, and memory for its header
    4. data   O_CREX, its size, and memory for all of it
    5. header, then its magic
Removal: data first, then ctl, then the lock. So a data object without a ctl object has no owner.

A name that exists already is an error, regardless of its owner: a process never writes into a ring that another one has
created. The entry of a reader gets its memory when the reader takes it. `posix_fallocate` makes a full /dev/shm an
error here instead of a SIGBUS at some later write.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import posix_ipc

from mmcached.shm.crash_points import crash_point
from mmcached.shm.files import locks
from mmcached.shm.segment.headroom import READ_ONLY_SHM, memory_headroom, no_shm_room, require_room
from mmcached.shm.segment.layout import HOME_OFFSET, MAGIC, PAGE_BYTES, Layout, SegmentHeader
from mmcached.shm.segment.mapped import SHM_DIR, Control, map_object, open_control, open_data
from mmcached.shm.segment.populate import Advice, Populator
from mmcached.shm.segment.words import require_word_store
from mmcached.wire.errors import LayoutMismatch, SegmentError
from mmcached.wire.handle import RingAnnouncement

_CREATE_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class HostCalls:
    """Operating-system calls that creation uses; tests substitute a small or full machine."""

    fallocate: Callable[[int, int, int], None] = os.posix_fallocate
    shm_free_bytes: Callable[[], int] = lambda: shutil.disk_usage(SHM_DIR).free
    headroom_bytes: Callable[[], int | None] = memory_headroom


class WriterSegment:
    """Both objects of a ring in its writer: mapped read-write, byte 0 locked."""

    def __init__(self, announcement: RingAnnouncement, control: Control, data: mmap.mmap) -> None:
        self.announcement = announcement
        self.control = control
        self.data = data
        self._populator = Populator(data, Advice.WRITE, nbytes=control.layout.data_object_bytes)

    @property
    def populated_bytes(self) -> int:
        return self._populator.populated_bytes

    def wait_populated(self, timeout_s: float) -> bool:
        """Wait for the populating thread; return whether all pages are populated. For benchmarks."""
        return self._populator.wait(timeout_s)

    def close(self, *, keeps_names: bool = False) -> None:
        """Unlink both names, data first, and release both objects. Readers keep their mappings.

        Args:
            keeps_names: Unlink nothing: another writer is to adopt both.
        """
        if not keeps_names:
            unlink(self.announcement.data_name)
            crash_point("close.between_unlinks")
            unlink(self.announcement.ctl_name)
        self._populator.close()
        self.control.close()
        del self.data  # unmapped with the last buffer of a claim, if one is left

    @classmethod
    def adopt(cls, announcement: RingAnnouncement, layout: Layout) -> WriterSegment:
        """Become the writer of both objects of a ring whose writer is dead; their content is unchanged.

        Args:
            layout: The expected layout.

        Raises:
            SegmentError: The objects are missing, or their writer lives.
            LayoutMismatch: They have another version or other sizes.
        """
        require_word_store()
        control = open_control(announcement)
        try:
            for field in ("data_bytes", "num_slots", "max_readers", "index_words"):
                former, wanted = getattr(control.layout, field), getattr(layout, field)
                LayoutMismatch.unless_equal(field, former, wanted, "ask for what it has, or make a new ring")
            is_ours = locks.try_exclusive(control.fd, locks.WRITER_BYTE) and is_name_of(
                announcement.ctl_name, control.fd
            )
            if not is_ours:
                raise SegmentError(f"{SHM_DIR}{announcement.ctl_name} has a writer that lives, or was just removed")
            control.map_all()
            return cls(announcement, control, open_data(announcement, is_writer=True))
        except BaseException:
            control.close()
            raise

    @classmethod
    def create(
        cls,
        layout: Layout,
        *,
        epoch: int,
        host: HostCalls,
        new_ring_id: Callable[[], str] = lambda: secrets.token_hex(16),
        home: str = "",
        later_bytes: int = 0,
    ) -> WriterSegment:
        """Create, lock, allocate and initialize both objects, and start the thread that populates the pages.

        Args:
            home: The run directory that is to have a note of the ring.
            later_bytes: Memory that will be allocated later in addition; checked against the free memory.

        Raises:
            SegmentError: No space in /dev/shm or under the memory limit, or the ring id is in use; nothing is left
                behind.
        """
        require_word_store()
        require_room(
            layout.created_bytes + layout.entry_bytes + later_bytes,
            shm_free_bytes=host.shm_free_bytes(),
            headroom_bytes=host.headroom_bytes(),
        )
        uid = os.getuid()
        with contextlib.ExitStack() as undo:
            ring_id, ctl_fd = _create_locked(uid, new_ring_id)
            sizes = (layout.data_bytes, layout.num_slots, layout.max_readers, layout.index_words)
            announcement = RingAnnouncement(uid, ring_id, epoch, *sizes)
            undo.callback(unlink, announcement.ctl_name)
            crash_point("create.after_lock")
            control = _allocate_control(ctl_fd, layout, host)
            undo.callback(control.close)
            crash_point("create.after_ctl_allocated")
            data_fd = create_object(announcement.data_name)
            undo.callback(unlink, announcement.data_name)
            try:
                os.ftruncate(data_fd, layout.data_object_bytes)
                _allocate(data_fd, layout.data_object_bytes, layout, host)
                crash_point("create.after_data_allocated")
                data = map_object(data_fd, layout.data_object_bytes)
            finally:
                os.close(data_fd)
            _write_header(control, ring_id, epoch, os.fsencode(home))
            segment = cls(announcement, control, data)
            undo.pop_all()
            return segment


def unlink(name: str) -> bool:
    """Remove a name; return False if it is missing or not ours: any user may create names in /dev/shm."""
    try:
        posix_ipc.unlink_shared_memory(name)
    except (posix_ipc.ExistentialError, posix_ipc.PermissionsError, OSError):
        return False
    return True


def is_name_of(name: str, fd: int) -> bool:
    """Return whether `name` still leads to the object that `fd` has open."""
    try:
        found = os.stat(SHM_DIR / name.lstrip("/"), follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(fd))


def _create_locked(uid: int, new_ring_id: Callable[[], str]) -> tuple[str, int]:
    """Do steps 1 and 2; if a sweep comes between them, start again under another name."""
    for _ in range(_CREATE_ATTEMPTS):
        ring_id = new_ring_id()
        name = f"/mmc.{uid}.{ring_id}.ctl"
        fd = create_object(name)
        crash_point("create.after_ctl")
        # Two ways to lose against a sweep: it holds the byte now and will unlink, or it has unlinked and unlocked
        # already.
        if locks.try_exclusive(fd, locks.WRITER_BYTE) and is_name_of(name, fd):
            return ring_id, fd
        os.close(fd)
    raise SegmentError(f"{_CREATE_ATTEMPTS} new segments were swept away before they were locked; try again later")


def create_object(name: str) -> int:
    try:
        fd: int = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600).fd
    except posix_ipc.ExistentialError as error:
        raise SegmentError(f"{SHM_DIR}{name} exists already: {_owner_of(name)}", name=name) from error
    except posix_ipc.PermissionsError as error:
        raise SegmentError(f"this user may not create {SHM_DIR}{name}; make {SHM_DIR} writable", name=name) from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise SegmentError(f"{SHM_DIR} is read-only: {READ_ONLY_SHM}", name=name) from error
        raise SegmentError(f"{SHM_DIR}{name} cannot be made: {error.strerror}", name=name) from error
    return fd


def _owner_of(name: str) -> str:
    """Describe the owner of an object that could not be created, and the next step."""
    if name.endswith(".data"):  # this process has just created its control object, so it was an orphan
        return "it is the leftover of a dead service; `mmcached shm gc` removes it"
    try:
        fd = posix_ipc.SharedMemory(name).fd
    except posix_ipc.ExistentialError:
        return "it has gone meanwhile; try again"
    except posix_ipc.PermissionsError:
        return "another user has made it; remove it as that user"
    try:
        if locks.is_free(fd, locks.WRITER_BYTE):
            return "its service is dead; `mmcached shm gc` removes it"
        return "its service lives, and a ring has one writer; stop that service, or take another ring id"
    finally:
        os.close(fd)


def _allocate_control(fd: int, layout: Layout, host: HostCalls) -> Control:
    """Do step 3. Owns `fd`: closes it on failure."""
    try:
        os.ftruncate(fd, layout.ctl_bytes)
        _allocate(fd, PAGE_BYTES, layout, host)
        control = Control(fd, layout)
        control.map_all()
        return control
    except BaseException:
        os.close(fd)
        raise


def _allocate(fd: int, size: int, layout: Layout, host: HostCalls) -> None:
    try:
        host.fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        raise no_shm_room(layout.created_bytes, host.shm_free_bytes(), str(error.strerror)) from error


def _write_header(control: Control, ring_id: str, epoch: int, home: bytes) -> None:
    packed_home = SegmentHeader.pack_home(home)
    control.words.cast("B")[HOME_OFFSET : HOME_OFFSET + len(packed_home)] = packed_home
    header = SegmentHeader(ring_id, epoch, os.getpid(), _start_ticks(), _boot_id(), control.layout)
    packed = header.pack()
    control.words.cast("B")[8 : 8 + len(packed)] = packed
    crash_point("create.before_magic")
    # Against a reader that opens the object too early: without the magic the header is invalid, with any other content.
    require_word_store().store_release(control.words, 0, MAGIC)


def _start_ticks() -> int:
    """Return when this process started, in clock ticks since boot; unique together with pid and boot id."""
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


def _boot_id() -> bytes:
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))


def leftover_names(uid: int) -> Iterator[str]:
    """Yield the POSIX names of this user's ring objects in /dev/shm, living writer or not; regular files only."""
    for path in sorted(SHM_DIR.glob(f"mmc.{uid}.*")):
        with contextlib.suppress(OSError):  # it was removed meanwhile
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_uid == uid:
                yield f"/{path.name}"
