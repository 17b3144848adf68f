"""Lists this user's shared-memory segments: purpose, writer, state. Removes leftovers."""

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
from mmcached.shm.segment.ring_notes import NotedRing, claim_on
from mmcached.shm.segment.segment import leftover_names
from mmcached.shm.segment.sweep import home_of, sweep
from mmcached.shm.stats.page import StatsPageReader
from mmcached.wire.errors import MmcachedError
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import RoleName

ORPHAN_S = 3600.0
"""Time after the frontend's last heartbeat for which `shm gc` leaves the rings of a dead service."""


class SegmentEntry(msgspec.Struct, frozen=True):
    """One name in /dev/shm.

    Attributes:
        nbytes: Maximum size (unwritten pages take no memory yet); of a nursery, its current size.
        is_live: Its writer holds its lock.
        is_kept: A running service is to adopt it, or it was kept for the next one (`--keep-cache`).
        is_orphaned: The service in its run directory died and was not restarted yet; the next one adopts it.
        pid: Pid of its writer, if it can be read; the process may have ended.
        process: Program name of the live writer; identifies rings without a run directory, such as a client's.
        purpose: "store" for clients' records, "nursery" for large records that a client writes itself, "ring" for
            another program's ring; "" if the header cannot be read.
        run_dir: Run directory of its service; "" for other segments.
    """

    name: str
    nbytes: int
    is_live: bool
    is_kept: bool
    is_orphaned: bool
    pid: int | None
    purpose: Literal["ring", "store", "nursery", ""]
    run_dir: str
    process: str = ""

    @property
    def state(self) -> str:
        if self.is_live:
            return "live"
        return "kept" if self.is_kept else "orphaned" if self.is_orphaned else "dead"


def list_segments() -> list[SegmentEntry]:
    """Return this user's segments, by name. Takes no lock and changes nothing."""
    found = []
    for name in leftover_names(os.getuid()):
        stem = re.sub(r"\.(ctl|data|nursery[0-9]+)$", "", name)
        with contextlib.suppress(OSError):  # it was removed meanwhile
            status = _path(name).lstat()
            # A nursery's file has its maximum size from the start.
            nbytes = 512 * status.st_blocks if ".nursery" in name else status.st_size
            is_live, layout, home = _look(f"{stem}.ctl")
            ring_id = stem.rpartition(".")[2]
            claim = None if is_live or home is None else claim_on(ring_id, home)
            is_kept = claim is not None and (claim.is_kept or claim.is_served)
            is_orphaned = claim is not None and not is_kept
            pid = None if layout is None else _writer_pid(f"{stem}.data", layout)
            purpose: Literal["ring", "store", "nursery", ""] = ""
            if layout is not None:
                purpose = "nursery" if ".nursery" in name else "store" if layout.index_words else "ring"
            run_dir = "" if home is None else str(home)
            process = _program(pid) if is_live else ""
            found.append(SegmentEntry(name, nbytes, is_live, is_kept, is_orphaned, pid, purpose, run_dir, process))
    return found


def remove_segments(*, removes_all: bool) -> list[str]:
    """Remove the segments of dead writers that no run directory claims; return their names.

    Segments that the next service of a run directory would adopt stay: always if they are kept, else until the service
    has been dead for `ORPHAN_S`.

    Args:
        removes_all: Remove those too, unless a service holds the directory.
    """

    def spares(claim: NotedRing) -> bool:
        if claim.is_served or removes_all:
            return claim.is_served
        silent_s = _silent_s(claim.home)
        return claim.is_kept or silent_s is None or silent_s < ORPHAN_S

    return sweep(spares=spares)


def _silent_s(home: Path) -> float | None:
    try:
        directory = RunDir(home)
        directory.check()
        with StatsPageReader(directory.stats_page) as page:
            frontend = page.read().get(RoleName("frontend"))
    except MmcachedError:
        return None
    return None if frontend is None else frontend.heartbeat_age_s


def _path(name: str) -> Path:
    return SHM_DIR / name.lstrip("/")


def _look(ctl_name: str) -> tuple[bool, Layout | None, Path | None]:
    """Return whether the writer of a ring lives, its layout and run directory; empty values for a lone data object."""
    try:
        fd = open_own(_path(ctl_name))
    except OSError:
        return False, None, None
    try:
        is_live = not locks.is_free(fd, locks.WRITER_BYTE)
        home = home_of(fd)
        try:
            return is_live, SegmentHeader.parse(os.pread(fd, PAGE_BYTES, 0)).layout, home
        except MmcachedError:
            return is_live, None, home
    finally:
        os.close(fd)


def _writer_pid(data_name: str, layout: Layout) -> int | None:
    """Return the pid on the board; the header only has the creator's."""
    try:
        fd = open_own(_path(data_name))
    except OSError:
        return None
    try:
        return int.from_bytes(os.pread(fd, 8, layout.board_offset + 8 * WRITER_PID), "little") or None
    finally:
        os.close(fd)


def _program(pid: int | None) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""
