"""Tells other hosts which records this host computes; records without a claim cost no call.

A claim lasts for a short time, after which another host takes over the claims of a dead one, and is renewed while the
record is computed. The frontend knows whether it is (`frontend.store.held_claims`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable

from mmcached.second_level.backend import BackendError
from mmcached.second_level.counts import Counts
from mmcached.second_level.shared_records import SharedRecords

MAX_NOTED = 4096
"""Finished claims are dropped once there are more than this."""


class HostClaims:
    """The claims of this host. Any thread may call; each call raises `BackendError`.

    Args:
        ttl_s: Lifetime of a claim that is not renewed.
        clock: Monotonic seconds.

    Attributes:
        on_news: Called when `settle` has work.
    """

    def __init__(
        self, records: SharedRecords, counts: Counts, *, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._records = records
        self._counts = counts
        self._ttl_s = ttl_s
        self._clock = clock
        self.on_news: Callable[[], object] = lambda: None
        self._name_to_end: dict[str, float] = {}
        self._news: dict[str, bool] = {}
        self._lock = threading.Lock()

    def take_claim(self, name: str, *, deadline: float) -> bool:
        """Return whether this host is to compute a record, rather than another host."""
        with self._counts.timed("claim"):
            is_ours = self._records.claim(name, ttl_s=self._ttl_s, deadline=deadline)
        if is_ours:
            with self._lock:
                self._name_to_end[name] = self._clock() + self._ttl_s
                if len(self._name_to_end) > MAX_NOTED:
                    self._forget()
        return is_ours

    def drop(self, name: str, *, deadline: float) -> None:
        """End an own claim: the record is stored, or will not come. Claims of other hosts are left alone."""
        with self._lock:
            is_ours = self._name_to_end.pop(name, 0.0) > self._clock()
        if is_ours:
            self._records.drop_claim(name, deadline=deadline)

    def note(self, states: Iterable[tuple[str, bool]]) -> None:
        """Note which claims are still held; `settle` tells other hosts. Makes no call."""
        with self._lock:
            news = {name: is_held for name, is_held in states if name in self._name_to_end}
            self._news |= news
        if news:
            self.on_news()

    def settle(self, timeout_s: float) -> None:
        """Renew held claims and drop the others, as noted; failures are ignored, since claims expire."""
        while True:
            with self._lock:
                if not self._news:
                    return
                name = next(iter(self._news))
                is_held = self._news.pop(name)
            with contextlib.suppress(BackendError):
                deadline = self._clock() + timeout_s
                if is_held:
                    self.take_claim(name, deadline=deadline)
                else:
                    self.drop(name, deadline=deadline)

    def _forget(self) -> None:
        now = self._clock()
        self._name_to_end = {name: end for name, end in self._name_to_end.items() if end > now}
