"""Says what a check of this host has found, and what every check is given."""

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
        what: the fact, with its numbers.
        fix: a command or a setting; "" if there is nothing to fix.
    """

    level: Level
    what: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """The place that is looked at.

    Attributes:
        config: the service's there, or what one would be started with.
        root: of `proc`, `sys`, `etc` and `dev`; tests put another host here.
        shm: where rings lie.
        loads_torch: torch may be loaded, in another process, to ask it for devices.
    """

    run_dir: Path
    config: ServiceConfig = field(default_factory=ServiceConfig)
    root: Path = Path("/")
    shm: Path = SHM_DIR
    loads_torch: bool = False

    def read(self, path: str) -> str:
        """Return the text of a file of this host; "" if there is none that can be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""


def mib(num_bytes: int) -> str:
    """Return a size for people.

    >>> mib(64 << 20), mib(3 << 30)
    ('64 MiB', '3.0 GiB')
    """
    return f"{num_bytes / (1 << 30):.1f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes >> 20} MiB"
