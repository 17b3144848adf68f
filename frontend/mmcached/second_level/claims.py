"""Says to other hosts which records this one computes, and when it has ended; what was not claimed costs no call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mmcached.second_level.counts import Counts
from mmcached.second_level.shared_records import SharedRecords

MAX_NOTED = 4096
"""Beyond as many those that are over are forgotten."""


class Claims:
    """The claims of this host. Any thread may call; each call raises `BackendError`.

    Args:
        ttl_s: how long other hosts believe in a claim.
        clock: monotonic seconds.
    """

    def __init__(
        self, records: SharedRecords, counts: Counts, *, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._counts = counts
        self._ttl_s = ttl_s
        self._clock = clock
        self._name_to_end: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, name: str, *, deadline: float) -> bool:
        """Return whether this host is to compute a record; else another one is at it."""
        with self._counts.timed("claim"):
            is_ours = self._records.claim(name, ttl_s=self._ttl_s, deadline=deadline)
        if is_ours:
            with self._lock:
                self._name_to_end[name] = self._clock() + self._ttl_s
                if len(self._name_to_end) > MAX_NOTED:
                    self._forget()
        return is_ours

    def drop(self, name: str, *, deadline: float) -> None:
        """End a claim: the record is there, or will not come; one that is not ours changes nothing."""
        with self._lock:
            is_ours = self._name_to_end.pop(name, 0.0) > self._clock()
        if is_ours:
            self._records.drop_claim(name, deadline=deadline)

    def _forget(self) -> None:
        now = self._clock()
        self._name_to_end = {name: end for name, end in self._name_to_end.items() if end > now}
