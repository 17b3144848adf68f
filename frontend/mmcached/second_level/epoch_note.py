"""Keeps this host's epoch and version on disk, for the next process of the second level.

Clients that compute with old weights outlive this process, and the service: without the note the next process would
take an epoch that another host has begun for its own, and save what old weights compute.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mmcached.second_level.backend import MAX_EPOCH, BackendError
from mmcached.second_level.versions import Scope, is_version


class EpochNote:
    """The epoch note of one run directory; None as `path` keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self) -> Scope:
        """Return epoch and version; 0 and "" if the note is missing or invalid."""
        text = ""
        if self._path is not None:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                text = self._path.read_text(encoding="ascii").strip()
        number, _, version = text.partition("\n")
        epoch = int(number) if number.isdigit() and len(number) < 20 and int(number) <= MAX_EPOCH else 0
        return Scope(epoch, version if epoch and is_version(version) else "")

    def write(self, scope: Scope) -> None:
        """Replace the note atomically; BackendError if it cannot be written."""
        if self._path is None:
            return
        new = self._path.with_suffix(".new")
        try:
            with new.open("w", encoding="ascii") as file:
                file.write(f"{scope.epoch}\n{scope.version}\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
        except OSError as error:
            raise BackendError(f"{self._path} cannot be written: {error.strerror}") from None
