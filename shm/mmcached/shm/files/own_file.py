"""Opens files where another user may have placed a link, a pipe or a directory under the same name.

Never blocks, follows no link, and opens no file of another user.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def open_own(path: Path, *, create: bool = False) -> int:
    """Open a regular file of this user read-write; with `create`, create a missing one with mode 0600.

    Raises:
        OSError: (FileNotFoundError, …) The file is missing, is not a regular file, or belongs to another user.
    """
    # Checked before the open, because opening a device may have side effects, and after it, because names can change.
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
