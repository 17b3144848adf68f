"""Keeps on disk the epoch to which this host belongs, so that a process that is started anew knows it.

Clients that compute with old weights outlive the process of the second level, and the service: without the note the
next process would take the epoch that another host has begun since for its own, and save what old weights compute.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mmcached.second_level.backend import MAX_EPOCH, BackendError


class EpochNote:
    """The note of one run directory; a host without one has never been in contact with a second level.

    Args:
        path: None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> int:
        """Return the epoch; 0: there is no note, or what lies there is none."""
        text = ""
        if self._path is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = self._path.read_text(encoding="ascii").strip()
        return int(text) if text.isdigit() and len(text) < 20 and int(text) <= MAX_EPOCH else 0

    def write(self, epoch: int) -> None:
        """Replace the note as a whole.

        Raises:
            BackendError: it cannot be written.
        """
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        try:
            with new.open("w", encoding="ascii") as file:
                file.write(f"{epoch}\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            raise BackendError(f"{self._path} cannot be written: {error.strerror}") from None
