"""Keeps this host's epoch on disk, for the next process of the second level.

Clients that compute with old weights outlive this process, and the service: without the note the next process would
take an epoch that another host has begun for its own, and save what old weights compute.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mmcached.second_level.backend import MAX_EPOCH, BackendError


class EpochNote:
    """The epoch note of one run directory; None as `path` keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> int:
        """Return the epoch; 0 if the note is missing or invalid."""
        text = ""
        if self._path is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = self._path.read_text(encoding="ascii").strip()
        return int(text) if text.isdigit() and len(text) < 20 and int(text) <= MAX_EPOCH else 0

    def write(self, epoch: int) -> None:
        """Replace the note atomically; BackendError if it cannot be written."""
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
