"""The finding of a check of this host, and the input of every check."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.wire.config import ServiceConfig

Level = Literal["ok", "warning", "problem"]
"""A warning costs something now or later; with a problem a service does not start, or does not work."""


class Finding(msgspec.Struct, frozen=True):
    """One line of the report.

    Attributes:
        what: The fact, with its numbers.
        fix: A command or a setting; "" if no fix is needed.
    """

    level: Level
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class CheckedHost:
    """The host to check.

    Attributes:
        config: Settings of the service there, or those that a new one would have.
        root: Parent of `proc`, `sys`, `etc` and `dev`; tests use another directory.
        shm: Directory of the rings.
        loads_torch: Whether torch may be loaded, in another process, to list devices.
    """

    run_dir: Path
    config: ServiceConfig = field(default_factory=ServiceConfig)
    root: Path = Path("/")
    shm: Path = SHM_DIR
    loads_torch: bool = False

    def read(self, path: str) -> str:
        """Return the text of a file of this host; "" if it is missing or unreadable."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""


def mib(num_bytes: int) -> str:
    """Return a size as text.

    >>> mib(64 << 20), mib(3 << 30)
    ('64 MiB', '3.0 GiB')
    """
    return f"{num_bytes / (1 << 30):.1f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes >> 20} MiB"
