"""Which shared-memory segments of this user exist, and whether their writers live."""

from __future__ import annotations

import contextlib
import os
import re

import msgspec

from mmcached.shm import locks
from mmcached.shm.layout import PAGE_BYTES, SegmentHeader
from mmcached.shm.mapped import SHM_DIR
from mmcached.shm.segment import leftover_names
from mmcached.wire.errors import MmcachedError


class SegmentEntry(msgspec.Struct, frozen=True):
    """One name in /dev/shm.

    Attributes:
        nbytes: what it takes at most; a page that was never written takes nothing yet.
        is_live: its writer holds its lock. `shm gc` removes what is not.
        pid: of its writer, if the header can be read; the process may be long gone.
    """

    name: str
    nbytes: int
    is_live: bool
    pid: int | None


def list_segments(uid: int | None = None) -> list[SegmentEntry]:
    """Return this user's segments, by name. Takes no lock and changes nothing."""
    found = []
    for name in leftover_names(os.getuid() if uid is None else uid):
        stem = re.sub(r"\.(ctl|data)$", "", name)
        with contextlib.suppress(FileNotFoundError):  # it went while we looked
            nbytes = (SHM_DIR / name.lstrip("/")).stat().st_size
            found.append(SegmentEntry(name, nbytes, *_writer_of(f"{stem}.ctl")))
    return found


def _writer_of(ctl_name: str) -> tuple[bool, int | None]:
    """Return whether the writer of a ring lives, and its pid; a data object without a control object has none."""
    try:
        fd = os.open(SHM_DIR / ctl_name.lstrip("/"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False, None
    try:
        is_live = not locks.is_free(fd, locks.WRITER_BYTE)
        try:
            return is_live, SegmentHeader.parse(os.pread(fd, PAGE_BYTES, 0)).writer_pid
        except MmcachedError:
            return is_live, None
    finally:
        os.close(fd)
