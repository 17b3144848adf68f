"""Serves the page at `/`, and `Overview` as JSON at `/overview`, for its script and `mmcached top`.

All readers see the same rates: "now" is the interval since a sample that is `WINDOW_S` old. The supervisor takes the
samples when it looks at its roles. Any thread may call.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources

from mmcached.cli.admin.records import Reader
from mmcached.cli.watch.overview import Overview, Sample, look_closely, overview_of, usage_by_pid
from mmcached.cli.watch.service_status import RoleStatus, ServiceStatus
from mmcached.wire.stats import ServiceStats

WINDOW_S = 10.0
"""Length of the interval for rates."""
SAMPLE_S = 2.0
"""Interval between samples: as often as an idle supervisor looks at its roles."""
HISTORY_S = 600.0


@cache
def page() -> bytes:
    return resources.files(__package__).joinpath("overview_page.html").read_bytes()


class OverviewPages:
    """The last samples of one service, and the hit rates of the last ten minutes."""

    def __init__(self, readers: Callable[[], list[Reader]], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._readers = readers
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque()
        self._history: deque[float] = deque(maxlen=int(HISTORY_S / SAMPLE_S))

    def sample(self, stats: Callable[[], ServiceStats], roles: Callable[[], Sequence[RoleStatus]]) -> None:
        """Keep the current figures, unless the last sample is recent. To be called periodically."""
        now = self._clock()
        with self._lock:
            last = self._samples[-1] if self._samples else None
            if last is not None and now - last.at_s < 0.9 * SAMPLE_S:
                return
            new = Sample(now, stats(), usage_by_pid(roles()))
            self._samples.append(new)
            # Keep one sample that is as old as the window, and all younger ones.
            while len(self._samples) > 1 and now - self._samples[1].at_s >= WINDOW_S:
                self._samples.popleft()
            if last is not None:
                # A reset counter has no rate.
                hits = max(0, new.stats.store.hits - last.stats.store.hits)
                self._history.append(round(hits / (now - last.at_s), 1))

    def overview(self, status: ServiceStatus) -> Overview:
        now = look_closely(status, clock=self._clock)
        with self._lock:
            before = self._samples[0] if self._samples and self._samples[0].at_s < now.at_s else None
            history = list(self._history)
        return overview_of(now, before, self._readers(), history)
