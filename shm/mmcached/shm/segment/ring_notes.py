"""Takes note, in a service's run directory, of the rings that its next frontend is to adopt.

    <run dir>/<name>.ring       JSON, mode 0600: the ring's announcement, and whether it may lie without a service

The ring's header names the run directory, its *home*, so that whoever sweeps finds the note. A dead writer's ring stays
as long as its home has a note of it, and either a service holds that directory or the note says that none need to.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from mmcached.shm.files.own_file import open_own
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.version import PROTOCOL_VERSION

_MAX_BYTES = 4096


class RingNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ring of a service.

    Attributes:
        is_kept: also while no service runs in its home.
        version: `PROTOCOL_VERSION` of the writer; what another has put there may be written otherwise.
    """

    ring: RingAnnouncement
    is_kept: bool
    version: int = PROTOCOL_VERSION


def write_note(home: Path, name: str, note: RingNote) -> None:
    """Put a note in place of the former of that name, whole or not at all; raise OSError if that cannot be."""
    made = home / f"{name}.ring.new"
    with contextlib.suppress(FileNotFoundError):
        made.unlink()
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(note))
    made.rename(home / f"{name}.ring")


def read_note(home: Path, name: str) -> RingNote | None:
    """Return the note of a ring; None if there is none that can be read."""
    return _read(home / f"{name}.ring")


def remove_note(home: Path, name: str) -> None:
    """Remove a note; without one it changes nothing."""
    with contextlib.suppress(OSError):
        (home / f"{name}.ring").unlink()


def remove_notes(home: Path) -> None:
    """Remove all notes."""
    for path in home.glob("*.ring"):
        remove_note(home, path.stem)


def noted_rings(home: Path) -> list[RingNote]:
    """Return the notes of a run directory; none of one that cannot be read."""
    with contextlib.suppress(OSError):
        return [note for path in sorted(home.glob("*.ring")) if (note := _read(path)) is not None]
    return []


def is_to_be_adopted(ring_id: str, home: Path, *, own: Path | None) -> bool:
    """Return whether a dead writer's ring stays.

    Args:
        home: as its header says.
        own: the run directory that this process is about to serve.
    """
    found = [note for note in noted_rings(home) if note.ring.ring_id == ring_id]
    return any(note.is_kept for note in found) or (bool(found) and (_is_same(home, own) or _is_served(home)))


def _read(path: Path) -> RingNote | None:
    try:
        fd = open_own(path)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.pread(fd, _MAX_BYTES, 0), type=RingNote)
    except (OSError, msgspec.DecodeError):
        return None
    finally:
        os.close(fd)


def _is_same(home: Path, own: Path | None) -> bool:
    try:
        return own is not None and home.samefile(own)
    except OSError:
        return False


def _is_served(home: Path) -> bool:
    """Return whether somebody holds the lock of a run directory, as its supervisor does."""
    try:
        fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
