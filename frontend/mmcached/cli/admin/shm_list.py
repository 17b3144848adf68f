"""Lists the shared-memory segments of this user: what each is for, and whether its writer lives."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Literal

import msgspec

from mmcached.shm.files import locks
from mmcached.shm.files.own_file import open_own
from mmcached.shm.segment.layout import PAGE_BYTES, SegmentHeader
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.segment import leftover_names
from mmcached.wire.errors import MmcachedError


class SegmentEntry(msgspec.Struct, frozen=True):
    """One name in /dev/shm.

    Attributes:
        nbytes: what it takes at most; a page that was never written takes nothing yet.
        is_live: its writer holds its lock. `shm gc` removes what is not.
        pid: of its writer, if the header can be read; the process may be long gone.
        purpose: the store is what clients put into, the ring is the processor cache; "" if the header cannot be read.
        run_dir: of the service whose frontend writes it; "" if that is dead, or no frontend.
    """

    name: str
    nbytes: int
    is_live: bool
    pid: int | None
    purpose: Literal["ring", "store", ""]
    run_dir: str


def list_segments() -> list[SegmentEntry]:
    """Return this user's segments, by name. Takes no lock and changes nothing."""
    found = []
    for name in leftover_names(os.getuid()):
        stem = re.sub(r"\.(ctl|data)$", "", name)
        with contextlib.suppress(OSError):  # it went while we looked
            nbytes = _path(name).lstat().st_size
            is_live, header = _look(f"{stem}.ctl")
            pid = None if header is None else header.writer_pid
            purpose: Literal["ring", "store", ""] = ""
            if header is not None:
                purpose = "store" if header.layout.index_words else "ring"
            run_dir = _run_dir_of(pid) if is_live and pid is not None else ""
            found.append(SegmentEntry(name, nbytes, is_live, pid, purpose, run_dir))
    return found


def _path(name: str) -> Path:
    return SHM_DIR / name.lstrip("/")


def _look(ctl_name: str) -> tuple[bool, SegmentHeader | None]:
    """Return whether the writer of a ring lives, and its header; a data object without a control object has none."""
    try:
        fd = open_own(_path(ctl_name))
    except OSError:
        return False, None
    try:
        is_live = not locks.is_free(fd, locks.WRITER_BYTE)
        try:
            return is_live, SegmentHeader.parse(os.pread(fd, PAGE_BYTES, 0))
        except MmcachedError:
            return is_live, None
    finally:
        os.close(fd)


def _run_dir_of(pid: int) -> str:
    """Return the run directory that a role's command line names; "" for another process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return words[words.index("--run-dir") + 1] if "--run-dir" in words[:-1] else ""
