"""Remove the shared-memory objects that killed services have left; never those of a living one.

A writer holds byte 0 of its control object for its life, so whoever gets that byte knows that the writer is dead. The
byte is held while the names go away: two sweeps cannot work on one ring, and one that is killed half-way leaves a
state that the next sweep understands (data goes first; a data object without a control object belongs to nobody).

A reader that still maps a swept object keeps reading it; the memory goes with its last mapping.
"""

from __future__ import annotations

import os
import re

import posix_ipc

from mmcached.shm import locks
from mmcached.shm.crash_points import crash_point
from mmcached.shm.segment import is_name_of, leftover_names, unlink


def sweep(uid: int | None = None) -> list[str]:
    """Unlink what no living writer owns.

    Args:
        uid: whose objects; by default this process's user.
    Returns:
        the POSIX names that were removed.
    """
    owner = os.getuid() if uid is None else uid
    pattern = re.compile(rf"(/mmc\.{owner}\.[0-9a-f]{{32}})\.(ctl|data)")
    stems = {match[1] for name in leftover_names(owner) if (match := pattern.fullmatch(name))}
    return [name for stem in sorted(stems) for name in _sweep_ring(stem)]


def _sweep_ring(stem: str) -> list[str]:
    ctl_name, data_name = f"{stem}.ctl", f"{stem}.data"
    try:
        fd = posix_ipc.SharedMemory(ctl_name).fd
    except posix_ipc.ExistentialError:
        # The name was listed, and a writer makes ctl before data and removes it after: so its data object, if any, has
        # no owner. (A writer that closed since the listing has removed its data itself.)
        return [data_name] if unlink(data_name) else []
    except posix_ipc.PermissionsError:
        return []  # not ours to judge
    try:
        # Against the writer that has just created this object and not locked it yet: it then finds the byte taken, or
        # the name gone, and begins again with another name.
        if not locks.try_exclusive(fd, locks.WRITER_BYTE):
            return []
        # Against another sweep that was here between our open and our lock: what the name leads to now is not what we
        # hold.
        if not is_name_of(ctl_name, fd):
            return []
        removed = [data_name] if unlink(data_name) else []
        crash_point("sweep.between_unlinks")
        return [*removed, ctl_name] if unlink(ctl_name) else removed
    finally:
        os.close(fd)
