"""Lists the live clients of a run directory, with their pids, from the locks that they hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mmcached.shm.files.lock_file import is_held
from mmcached.wire.paths import RunDir

_MAX_LOCK_TEXT = 64


def living_clients(directory: RunDir) -> Iterator[tuple[int, str]]:
    """Yield pid and name of each live client, "" without a name; other files are skipped."""
    for path in directory.clients.glob("*.lock"):
        with contextlib.suppress(OSError, ValueError):
            if is_held(path):
                with path.open("rb") as file:
                    pid, _, name = file.read(_MAX_LOCK_TEXT).decode("ascii").partition(" ")
                yield int(pid), name
