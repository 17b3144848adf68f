"""Judges errors of the store: a dead, full or late service is a miss, counted by its cause and logged now and then.

    store verb ── typed error ──> fail open: counted by cause, one warning for each, the verb's "nothing found"
                       └────────> else raised, as bad input and our own bugs always are

A cause is said once, and again when a minute of it has passed: silence would look like a cold cache.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mmcached.wire.errors import ClientClosed, InvalidRequest, InvariantError, LocalProtocolError, MmcachedError

_LOG = logging.getLogger("mmcached.client")
WARNING_INTERVAL_S = 60.0
_MAX_SAID = 1024
_SAID: set[tuple[str, str]] = set()
"""What the clients of this process have said of which ring: with hundreds of them, each would say the same."""
_ALWAYS_RAISED = (ClientClosed, InvalidRequest, LocalProtocolError, InvariantError)


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """What one client has seen of the store since it was made; each figure only rises.

    Attributes:
        queries: keys asked for, by `get`, `get_many`, `get_or_compute`, `open` and `claim_many`; of the last, not
            those that are pending.
        hits: how many of them had a record.
        inline_hits: how many of those came through the socket instead of shared memory.
        computed: functions that `get_or_compute` ran here.
        puts: records offered to the store, results of `get_or_compute` included.
        stored: how many of them it has kept, or had already.
        failures: verbs for which the service was not there, late, or wrong; with `fail_open` they ended as a miss.
        causes: how many verbs ended without what they were for, by cause: the `code` of the error, or why the service
            did not keep a record, such as "too large".
    """

    queries: int = 0
    hits: int = 0
    inline_hits: int = 0
    computed: int = 0
    puts: int = 0
    stored: int = 0
    failures: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)


class FailOpen:
    """The counters of one client, and its judgement of errors.

    Args:
        is_open: whether an error of the service is a miss.
        clock: monotonic seconds.
    """

    def __init__(self, *, is_open: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_open = is_open
        self._lock = threading.RLock()
        self._counts = {name: 0 for name in StoreCounters.__slots__ if name != "causes"}
        self._clock = clock
        self._causes: Counter[str] = Counter()
        self._next_warnings: dict[str, float] = {}

    @property
    def counters(self) -> StoreCounters:
        with self._lock:
            return StoreCounters(**self._counts, causes=dict(self._causes))

    def count(self, **more: int) -> None:
        """Add to the named counters."""
        with self._lock:
            for name, number in more.items():
                self._counts[name] += number

    def count_queries(self, num_queries: int, num_hits: int) -> None:
        """As `count`, for each call that looks for records."""
        counts = self._counts
        with self._lock:
            counts["queries"] += num_queries
            counts["hits"] += num_hits

    def abandon(self) -> None:
        """In a forked child: the thread that is just counting may not exist here."""
        self._lock = threading.RLock()

    def is_miss(self, operation: str, error: MmcachedError) -> bool:
        """Count an error and return whether it is a miss; if not, the caller raises it.

        Raising it here would make a cycle of error and frame, which keeps the caller's views, and so their leases.
        """
        if isinstance(error, _ALWAYS_RAISED):
            return False
        self.count(failures=1)
        # The text only: a record that is kept would keep the error, and with its traceback perhaps a lease.
        self.note(error.code, f"{operation} goes on without the service: {error}" if self.is_open else None)
        return self.is_open

    def note_refusal(self, cause: str, reason: str) -> None:
        """Count a record that was not kept, by cause, and say why."""
        self.note(cause, f"a record was not kept: {reason}")

    def note(self, cause: str, warning: str | None) -> None:
        """Count a cause, and warn of it unless that was done a moment ago."""
        now = self._clock()
        with self._lock:
            self._causes[cause] += 1
            count = self._causes[cause]
            is_time = warning is not None and now >= self._next_warnings.get(cause, now)
            if is_time:
                self._next_warnings[cause] = now + WARNING_INTERVAL_S
        if is_time:
            _LOG.warning("%s (%d times so far; see store_counters())", warning, count)

    def warn_once(self, cause: str, ring_id: str, warning: str) -> None:
        """Say what is no error but slow; of one ring not a second time in this process, whichever client asks."""
        with self._lock:
            is_new = (cause, ring_id) not in _SAID
            if len(_SAID) >= _MAX_SAID:
                _SAID.clear()
            _SAID.add((cause, ring_id))
        if is_new:
            _LOG.warning("%s", warning)
