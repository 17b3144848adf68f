"""A dead, full or late service is a miss: which errors that holds for, how they are counted, and who is told.

store verb ── typed error ──> fail open: counted, one warning a minute, the verb's "nothing found"
                   └────────> else raised, as bad input and our own bugs always are
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mmcached.wire.errors import InvalidRequest, InvariantError, LocalProtocolError, MmcachedError

_LOG = logging.getLogger("mmcached.client")
WARNING_INTERVAL_S = 60.0
_ALWAYS_RAISED = (InvalidRequest, LocalProtocolError, InvariantError)


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """What one client has seen of the store since it was made; each figure only rises.

    Attributes:
        queries: keys asked for, by `get`, `get_many` and `get_or_compute`.
        hits: how many of them had a record.
        inline_hits: how many of those came through the socket instead of shared memory.
        computed: functions that `get_or_compute` ran here.
        puts: records offered to the store, results of `get_or_compute` included.
        stored: how many of them it has kept, or had already.
        failures: verbs for which the service was not there, late, or wrong; with `fail_open` they ended as a miss.
    """

    queries: int = 0
    hits: int = 0
    inline_hits: int = 0
    computed: int = 0
    puts: int = 0
    stored: int = 0
    failures: int = 0


class FailOpen:
    """The counters of one client, and its judgement of errors.

    Args:
        is_open: whether an error of the service is a miss.
        clock: monotonic seconds.
    """

    def __init__(self, *, is_open: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_open = is_open
        self._counts: Counter[str] = Counter()
        self._clock = clock
        self._next_warning = -float("inf")

    @property
    def counters(self) -> StoreCounters:
        return StoreCounters(**self._counts)

    def count(self, **more: int) -> None:
        """Add to the named counters."""
        self._counts.update(more)

    def is_miss(self, operation: str, error: MmcachedError) -> bool:
        """Count an error and return whether it is a miss; if not, the caller raises it.

        Raising it here would make a cycle of error and frame, which keeps the caller's views, and so their leases.
        """
        if isinstance(error, _ALWAYS_RAISED):
            return False
        self.count(failures=1)
        if not self.is_open:
            return False
        now = self._clock()
        if now >= self._next_warning:
            self._next_warning = now + WARNING_INTERVAL_S
            # The text only: a record that is kept would keep the error, and with its traceback perhaps a lease.
            failures = self._counts["failures"]
            _LOG.warning("%s goes on without the service (%d times so far): %s", operation, failures, str(error))
        return True
