"""A ring that is made as soon as there is room for it.

After a frontend's death its ring still lies in /dev/shm, for as long as readers map it; beside it there may be no room
for the next. So a ring that cannot be made is no reason to end: everything travels inline, and it is tried again.

Knows nothing of what the ring is for.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from mmcached.shm import RingWriter
from mmcached.wire.errors import SegmentError

log = structlog.get_logger("mmcached.frontend")

RETRY_S = 3.0


class RetriedRing:
    """Makes one ring.

    Args:
        name: of the ring, for the log.
        make: raises SegmentError if there is no room.
    """

    def __init__(self, name: str, make: Callable[[], RingWriter]) -> None:
        self._name = name
        self._make = make
        self._retry_at = -float("inf")
        self._num_failures = 0

    def try_now(self, now: float) -> RingWriter | None:
        """Return the ring, which is the caller's from then on; None if there is no room, or it is not time to look."""
        if now < self._retry_at:
            return None
        self._retry_at = now + RETRY_S
        try:
            ring = self._make()
        except SegmentError as error:
            if not self._num_failures:
                log.error("no room: goes on without and tries again", ring=self._name, reason=str(error))
            self._num_failures += 1
            return None
        if self._num_failures:
            log.info("there is room now", ring=self._name, attempts=self._num_failures + 1)
        return ring
