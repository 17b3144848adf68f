"""Publishes a role's figures on the stats page: periodically, as a heartbeat, and before an answer that they count."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from mmcached.shm.stats.page import StatsPageWriter
from mmcached.wire.closeable import Closeable
from mmcached.wire.figures import StatsRecord
from mmcached.wire.stats import RoleName

logger = logging.getLogger("mmcached.stats")

INTERVAL_S = 0.1


class StatsPublisher(Closeable):
    """One role's writer. Without a page (a role that was started alone) it does nothing."""

    def __init__(self, path: Path, role: RoleName, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock()
        self._writer = StatsPageWriter(path, role) if path.exists() else None
        if self._writer is None:
            logger.info("no stats page at %s: figures are not published", path)

    def publish_if_due(self, stats: Callable[[], StatsRecord]) -> None:
        """Publish the result of `stats`, at most every `INTERVAL_S`. Call it at every turn of the loop."""
        if self._clock() >= self._next:
            self.publish(stats)

    def publish(self, stats: Callable[[], StatsRecord]) -> None:
        """Publish the result of `stats`. Call it before an answer, so that its receiver finds it counted."""
        if self._writer is not None:
            self._next = self._clock() + INTERVAL_S
            self._writer.publish(stats())

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
