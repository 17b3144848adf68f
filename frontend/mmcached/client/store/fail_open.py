"""Decides which errors of the store count as misses, counts them by cause, and logs them.

    store call ── typed error ──> fail open: counted by cause, logged, the call returns its "nothing found" result
                       └────────> raised: strict clients, invalid arguments, and bugs in this library

Each cause is logged at most once every `WARNING_INTERVAL_S` seconds: without a log line, a dead service would look like
a cold cache.
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
"""(cause, ring id) pairs logged by any client of this process: hundreds of clients would log the same line."""
_ALWAYS_RAISED = (ClientClosed, InvalidRequest, LocalProtocolError, InvariantError)


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """Counters of one client's store calls since it was made; no counter ever decreases.

    Attributes:
        queries: Keys asked for by `get`, `get_many`, `get_or_compute`, `open` and `claim_many`; pending keys of
            `claim_many` do not count.
        hits: Queried keys that had a record.
        inline_hits: Hits that came through the socket instead of shared memory.
        computed: Functions that `get_or_compute` ran in this client.
        puts: Records offered to the store, including results of `get_or_compute`.
        stored: Puts after which the store had a record under the key, this one or an earlier one.
        failures: Calls for which the service was missing, late or faulty; with `fail_open` they ended as misses.
        causes: Number of unsuccessful calls by cause: the `code` of the error, or the reason why the service did not
            keep a record, such as "too large".
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
    """The counters of one client, and its decision which errors are misses.

    Args:
        is_open: Whether an error of the service counts as a miss.
        clock: Monotonic time in seconds.
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
        """Add to `queries` and `hits`; a faster `count` for every call that looks up records."""
        counts = self._counts
        with self._lock:
            counts["queries"] += num_queries
            counts["hits"] += num_hits

    def abandon(self) -> None:
        """Replace the lock in a forked child: the thread that held it may not exist here."""
        self._lock = threading.RLock()

    def is_miss(self, operation: str, error: MmcachedError) -> bool:
        """Count an error and return whether it is a miss; if not, the caller raises it.

        Raising it here would make a reference cycle of error and frame, which would keep the caller's views and their
        leases.
        """
        if isinstance(error, _ALWAYS_RAISED):
            return False
        self.count(failures=1)
        # Pass only the text: a stored log record would keep the error, and its traceback might keep a lease.
        self.note(error.code, f"{operation} goes on without the service: {error}" if self.is_open else None)
        return self.is_open

    def note_refusal(self, cause: str, reason: str) -> None:
        """Count and log a record that the service did not keep."""
        self.note(cause, f"a record was not kept: {reason}")

    def note(self, cause: str, warning: str | None) -> None:
        """Count a cause, and log `warning` unless this cause was logged within `WARNING_INTERVAL_S`."""
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
        """Log a slow path; once per ring and cause in this process, for all clients together."""
        with self._lock:
            is_new = (cause, ring_id) not in _SAID
            if len(_SAID) >= _MAX_SAID:
                _SAID.clear()
            _SAID.add((cause, ring_id))
        if is_new:
            _LOG.warning("%s", warning)
