"""Removes the shared-memory objects that killed services have left; never those of a living one.

A writer holds byte 0 of its control object for its life, so a process that gets that byte knows that the writer is
dead. The byte is held while the names are removed: two sweeps cannot work on one ring, and a sweep that is killed
half-way leaves a state that the next sweep understands. A ring that a run directory has a note of belongs to that
directory (`ring_notes`), whichever version made it: only its next frontend removes it, or a person, or a sweep after
the note was removed. A reader that still maps a swept object keeps reading the records that it holds; its lookups find
nothing from now on, because another ring may have newer records.

Any user may create names in /dev/shm: only regular files of this user are swept, and a name that cannot be swept does
not prevent the sweep of the others.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path

from mmcached.shm.crash_points import crash_point
from mmcached.shm.files import locks
from mmcached.shm.files.own_file import open_own
from mmcached.shm.segment.board import Board
from mmcached.shm.segment.layout import PAGE_BYTES, SegmentHeader
from mmcached.shm.segment.mapped import SHM_DIR, map_object
from mmcached.shm.segment.ring_notes import NotedRing, claim_on
from mmcached.shm.segment.segment import is_name_of, leftover_names, unlink
from mmcached.wire.errors import LayoutMismatch

_logger = logging.getLogger(__name__)


def sweep(*, spares: Callable[[NotedRing], bool] = lambda claim: True) -> list[str]:
    """Unlink objects of this user that have no living writer and no run directory's claim.

    Args:
        spares: Returns whether a ring that a run directory claims is kept.

    Returns:
        The POSIX names that were removed.
    """
    owner = os.getuid()
    pattern = re.compile(rf"(/mmc\.{owner}\.[0-9a-f]{{32}})\.(ctl|data|nursery[0-9]+)")
    stems = {match[1] for name in leftover_names(owner) if (match := pattern.fullmatch(name))}
    removed: list[str] = []
    for stem in sorted(stems):
        try:
            removed += _sweep_ring(stem, spares)
        except OSError as error:
            _logger.warning("%s cannot be swept: %s", stem, error)
    return removed


def home_of(ctl_fd: int) -> Path | None:
    """Return the run directory that a control object of any version names, or None."""
    home = SegmentHeader.home_of(os.pread(ctl_fd, PAGE_BYTES, 0))
    return Path(os.fsdecode(home)) if home and b"\0" not in home else None


def _detach_readers(ctl_fd: int, data_name: str) -> None:
    """Stop all lookups and leases in a ring; a ring that is incomplete or of another version stays unchanged."""
    try:
        layout = SegmentHeader.parse(os.pread(ctl_fd, PAGE_BYTES, 0)).layout
        data_fd = open_own(SHM_DIR / data_name.lstrip("/"))
    except (LayoutMismatch, FileNotFoundError):
        return
    try:
        if os.fstat(data_fd).st_size == layout.data_object_bytes:
            nbytes = layout.slots_offset - layout.board_offset
            mapping = map_object(data_fd, nbytes, offset=layout.board_offset)
            with mapping, memoryview(mapping) as whole, whole.cast("Q") as words:
                Board(words).detach_all()
    finally:
        os.close(data_fd)


def _unlink_contents(stem: str) -> list[str]:
    """Remove the nurseries and the data object of a ring without a writer; return the names."""
    pattern = re.compile(rf"{re.escape(stem)}\.nursery[0-9]+")
    nurseries = filter(pattern.fullmatch, leftover_names(os.getuid()))
    return [name for name in (*nurseries, f"{stem}.data") if unlink(name)]


def _sweep_ring(stem: str, spares: Callable[[NotedRing], bool]) -> list[str]:
    ctl_name, data_name = f"{stem}.ctl", f"{stem}.data"
    try:
        fd = open_own(SHM_DIR / ctl_name.lstrip("/"))
    except FileNotFoundError:
        # The name was listed, and a writer creates ctl before data and removes it after: so its data object, if any,
        # has no owner. (A writer that closed since the listing has removed its data itself.)
        return _unlink_contents(stem)
    try:
        # Against the writer that has just created this object and not locked it yet: it then finds the byte taken, or
        # the name gone, and begins again with another name.
        if not locks.try_exclusive(fd, locks.WRITER_BYTE):
            return []
        # Against another sweep between our open and our lock: the name may now lead to another object than the one we
        # hold.
        if not is_name_of(ctl_name, fd):
            return []
        home = home_of(fd)
        claim = None if home is None else claim_on(stem.rpartition(".")[2], home)
        if claim is not None and spares(claim):
            return []
        _detach_readers(fd, data_name)
        removed = _unlink_contents(stem)  # its nurseries too; the writer may have created some until it died
        crash_point("sweep.between_unlinks")
        return [*removed, ctl_name] if unlink(ctl_name) else removed
    finally:
        os.close(fd)
