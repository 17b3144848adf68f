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
from mmcached.shm.segment.board import WRITER_PID
from mmcached.shm.segment.layout import PAGE_BYTES, Layout, SegmentHeader
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.ring_notes import is_to_be_adopted
from mmcached.shm.segment.segment import leftover_names
from mmcached.shm.segment.sweep import home_of
from mmcached.wire.errors import MmcachedError


class SegmentEntry(msgspec.Struct, frozen=True):
    """One name in /dev/shm.

    Attributes:
        nbytes: what it takes at most; a page that was never written takes nothing yet.
        is_live: its writer holds its lock. `shm gc` removes what is not, unless it is kept.
        is_kept: a service in its run directory is to adopt it.
        pid: of its writer, if it can be read; the process may be long gone.
        process: name of the writer's program, if it lives; says whose a ring without a run directory is, as a client's.
        purpose: the store is what clients put into, the ring is the processor cache; "" if the header cannot be read.
        run_dir: of the service whose frontend writes it, or is to adopt it; "" for any other.
    """

    name: str
    nbytes: int
    is_live: bool
    is_kept: bool
    pid: int | None
    purpose: Literal["ring", "store", ""]
    run_dir: str
    process: str = ""

    @property
    def state(self) -> str:
        return "live" if self.is_live else "kept" if self.is_kept else "dead"


def list_segments() -> list[SegmentEntry]:
    """Return this user's segments, by name. Takes no lock and changes nothing."""
    found = []
    for name in leftover_names(os.getuid()):
        stem = re.sub(r"\.(ctl|data)$", "", name)
        with contextlib.suppress(OSError):  # it went while we looked
            nbytes = _path(name).lstat().st_size
            is_live, layout, home = _look(f"{stem}.ctl")
            ring_id = stem.rpartition(".")[2]
            is_kept = not is_live and home is not None and is_to_be_adopted(ring_id, home, own=None)
            pid = None if layout is None else _writer_pid(f"{stem}.data", layout)
            purpose: Literal["ring", "store", ""] = ""
            if layout is not None:
                purpose = "store" if layout.index_words else "ring"
            run_dir = str(home) if home is not None and (is_live or is_kept) else ""
            process = _program(pid) if is_live else ""
            found.append(SegmentEntry(name, nbytes, is_live, is_kept, pid, purpose, run_dir, process))
    return found


def _path(name: str) -> Path:
    return SHM_DIR / name.lstrip("/")


def _look(ctl_name: str) -> tuple[bool, Layout | None, Path | None]:
    """Return whether the writer of a ring lives, its layout, and its home; a data object alone has none of these."""
    try:
        fd = open_own(_path(ctl_name))
    except OSError:
        return False, None, None
    try:
        is_live = not locks.is_free(fd, locks.WRITER_BYTE)
        try:
            return is_live, SegmentHeader.parse(os.pread(fd, PAGE_BYTES, 0)).layout, home_of(fd)
        except MmcachedError:
            return is_live, None, None
    finally:
        os.close(fd)


def _writer_pid(data_name: str, layout: Layout) -> int | None:
    """Return the pid on the board; the header only has that of the creator."""
    try:
        fd = open_own(_path(data_name))
    except OSError:
        return None
    try:
        return int.from_bytes(os.pread(fd, 8, layout.board_offset + 8 * WRITER_PID), "little") or None
    finally:
        os.close(fd)


def _program(pid: int | None) -> str:
    """Return the name of a process's program; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
