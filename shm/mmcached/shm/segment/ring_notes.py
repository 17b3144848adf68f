"""Notes in a service's run directory that name the rings that its next frontend is to adopt.

    <run dir>/<name>.ring       JSON, mode 0600: the ring's announcement, and whether it may exist without a service

The ring's header names the run directory, its *home*, so that a sweep finds the note. A dead writer's ring belongs to
its home as long as there is a note of it there: no other service removes it. Another version may have written the
note: in every version it has the ring's id in its text, and `is_kept`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mmcached.shm.files.own_file import open_own
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.version import PROTOCOL_VERSION

_MAX_BYTES = 4096


class RingNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Note of one ring of a service.

    Attributes:
        is_kept: The ring is also kept while no service runs in its home.
        version: `PROTOCOL_VERSION` of the writer; notes of other versions may have another format.
    """

    ring: RingAnnouncement
    is_kept: bool
    version: int = PROTOCOL_VERSION


def write_note(home: Path, name: str, note: RingNote) -> None:
    """Replace the note of that name atomically; raise OSError on failure."""
    made = home / f"{name}.ring.new"
    with contextlib.suppress(FileNotFoundError):
        made.unlink()
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(note))
    made.rename(home / f"{name}.ring")


def read_note(home: Path, name: str) -> RingNote | None:
    return _read(home / f"{name}.ring")


def has_note(home: Path, name: str) -> bool:
    """Return whether there is a note of that name, readable or not."""
    return (home / f"{name}.ring").is_file()


def remove_note(home: Path, name: str) -> None:
    """Remove a note; a missing note changes nothing."""
    with contextlib.suppress(OSError):
        (home / f"{name}.ring").unlink()


def remove_notes(home: Path) -> None:
    for path in home.glob("*.ring"):
        remove_note(home, path.stem)


def noted_rings(home: Path) -> list[RingNote]:
    """Return the readable notes of a run directory."""
    with contextlib.suppress(OSError):
        return [note for path in sorted(home.glob("*.ring")) if (note := _read(path)) is not None]
    return []


def missing_names(home: Path) -> list[str]:
    """Return the POSIX names of a run directory's noted rings that are missing in /dev/shm."""
    names = (name for note in noted_rings(home) for name in (note.ring.ctl_name, note.ring.data_name))
    return [name for name in names if not (SHM_DIR / name.lstrip("/")).exists()]


@dataclass(frozen=True, slots=True)
class NotedRing:
    """Claim of a run directory on a dead writer's ring, from its note.

    Attributes:
        home: The run directory that has the note.
        is_kept: The ring may exist without a service.
        is_served: A service runs in the directory, and its next frontend adopts the ring.
    """

    home: Path
    is_kept: bool
    is_served: bool


def claim_on(ring_id: str, home: Path) -> NotedRing | None:
    """Return a run directory's claim on a ring, from a note of any version; None if it has no note of it."""
    try:
        texts = [text for path in home.glob("*.ring") if ring_id.encode() in (text := _text_of(path))]
    except OSError:
        return None
    return NotedRing(home, any(map(_is_kept, texts)), _is_served(home)) if texts else None


class _AnyNote(msgspec.Struct):
    """The fields that a note has in every version."""

    is_kept: bool = False


def _is_kept(text: bytes) -> bool:
    try:
        return msgspec.json.decode(text, type=_AnyNote).is_kept
    except msgspec.DecodeError:
        return False


def _read(path: Path) -> RingNote | None:
    try:
        return msgspec.json.decode(_text_of(path), type=RingNote)
    except msgspec.DecodeError:
        return None


def _text_of(path: Path) -> bytes:
    try:
        fd = open_own(path)
    except OSError:
        return b""
    try:
        return os.pread(fd, _MAX_BYTES, 0)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _is_served(home: Path) -> bool:
    """Return whether a process holds the lock of a run directory, as its supervisor does."""
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
