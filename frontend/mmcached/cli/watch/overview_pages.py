"""Serves `Overview`: the page at `/`, and the figures that its script and `mmcached top` ask for, at `/overview`.

All who ask, however often, see the same: "now" is what has happened since a sample that is `WINDOW_S` old. The
supervisor takes the samples, when it looks at its roles. Knows nothing of sockets; any thread may ask.
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
"""What "now" means."""
SAMPLE_S = 2.0
"""From one sample to the next: as often as a supervisor at rest looks at its roles."""
HISTORY_S = 600.0


@cache
def page() -> bytes:
    """Return the page, complete: style and script are in it."""
    return resources.files(__package__).joinpath("overview_page.html").read_bytes()


class OverviewPages:
    """The last samples of one service, and the hit rates of the last ten minutes.

    Args:
        readers: returns who holds leases of the store.
    """

    def __init__(self, readers: Callable[[], list[Reader]], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._readers = readers
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque()
        self._history: deque[float] = deque(maxlen=int(HISTORY_S / SAMPLE_S))

    def sample(self, stats: Callable[[], ServiceStats], roles: Callable[[], Sequence[RoleStatus]]) -> None:
        """Keep the figures of now, unless the last sample was just taken. Call it now and then."""
        now = self._clock()
        with self._lock:
            last = self._samples[-1] if self._samples else None
            if last is not None and now - last.at_s < 0.9 * SAMPLE_S:
                return
            new = Sample(now, stats(), usage_by_pid(roles()))
            self._samples.append(new)
            # The one that is as old as the window stays, and all that are younger.
            while len(self._samples) > 1 and now - self._samples[1].at_s >= WINDOW_S:
                self._samples.popleft()
            if last is not None:
                # A counter that began anew has no rate.
                hits = max(0, new.stats.store.hits - last.stats.store.hits)
                self._history.append(round(hits / (now - last.at_s), 1))

    def overview(self, status: ServiceStatus) -> Overview:
        """Return a frame of the service as `status` has it now."""
        now = look_closely(status, clock=self._clock)
        with self._lock:
            before = self._samples[0] if self._samples and self._samples[0].at_s < now.at_s else None
            history = list(self._history)
        return overview_of(now, before, self._readers(), history)
