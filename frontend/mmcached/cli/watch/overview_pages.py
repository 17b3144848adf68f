"""Serves `Overview` to browsers: the page at `/`, and the figures that its script asks for, at `/overview`.

Several browsers, and one that asks often, see the same: "now" is what has happened since a look that is at least
`MIN_INTERVAL_S` old. Knows nothing of sockets; any thread may ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache
from importlib import resources

from mmcached.cli.admin.records import Reader
from mmcached.cli.watch.overview import Look, Overview, look_closely, overview_of
from mmcached.cli.watch.service_status import ServiceStatus

MIN_INTERVAL_S = 1.0


@cache
def page() -> bytes:
    """Return the page, complete: style and script are in it."""
    return resources.files(__package__).joinpath("overview_page.html").read_bytes()


class OverviewPages:
    """What was seen last, of one service.

    Args:
        readers: returns who holds leases of the store.
    """

    def __init__(self, readers: Callable[[], list[Reader]], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._readers = readers
        self._clock = clock
        self._lock = threading.Lock()
        self._last: Look | None = None
        self._before: Look | None = None

    def overview(self, status: ServiceStatus) -> Overview:
        """Return a frame of the service as `status` has it now."""
        now = look_closely(status, clock=self._clock)
        with self._lock:
            if self._last is None or now.at_s - self._last.at_s >= MIN_INTERVAL_S:
                self._before, self._last = self._last, now
            before = self._before
        return overview_of(now, before, self._readers())
