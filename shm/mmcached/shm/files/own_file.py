"""Opens files in places where others may put something else under the same name: a link, a pipe, a directory.

Never blocks, follows no link, and opens no file of another user.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_own(path: Path, *, create: bool = False) -> int:
    """Open a regular file of this user, read-write; with `create`, make it with mode 0600 if there is nothing.

    Raises:
        OSError: (FileNotFoundError, …) there is no such file, or what is there is not regular or not this user's.
    """
    # Looked at before it is opened, because to open a device may do something; and after, because names change.
    try:
        _require_own(path, path.lstat())
    except FileNotFoundError:
        if not create:
            raise
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags | os.O_CREAT if create else flags, 0o600)
    try:
        _require_own(path, os.fstat(fd))
    except OSError:
        os.close(fd)
        raise
    return fd


def _require_own(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{path} is not a regular file")
    if status.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to uid {status.st_uid}, not {os.geteuid()}")
