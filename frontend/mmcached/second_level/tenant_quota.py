"""Limits the bytes that this host saves in the second level for each tenant.

    reserve ──> commit      it may have been written: the bytes count for the lifetime of a record
            └─> release     nothing was written

Records are on the server for `ttl_s` at most, so those that a host has saved for one tenant are within the quota.
Replaced, dropped and evicted records count as well: what has become of a record on the server is unknown.

Invariant: the bytes that were reserved or committed within the last `ttl_s` are at most the quota.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

NUM_PERIODS = 16
"""Parts of the lifetime in which committed bytes are added up: they count for up to a part longer than it."""
MAX_TENANTS = 4096
"""Number of remembered tenants; beyond it the tenant whose last save is the oldest is forgotten."""


class _Saved(NamedTuple):
    period: int
    num_bytes: int


class TenantQuota:
    """The bytes saved for each tenant. Any thread may call.

    Args:
        quota_bytes: Maximum bytes of one tenant within `ttl_s`; None for no limit.
        ttl_s: The longest lifetime of a record on the server, in seconds.
        clock: Monotonic seconds.
    """

    def __init__(self, quota_bytes: int | None, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quota_bytes = quota_bytes
        self._period_s = ttl_s / NUM_PERIODS
        self._clock = clock
        self._tenant_to_saved: dict[str, deque[_Saved]] = {}  # in the order of their last saves
        self._reserved: Counter[str] = Counter()
        self._lock = threading.Lock()

    def has_room(self, tenant: str, num_bytes: int) -> bool:
        """Return whether `num_bytes` more are within the quota."""
        if self._quota_bytes is None:
            return True
        with self._lock:
            return self._used(tenant) + num_bytes <= self._quota_bytes

    def reserve(self, tenant: str, num_bytes: int) -> bool:
        """Count bytes that are about to be saved, if they are within the quota; `commit` or `release` must follow."""
        if self._quota_bytes is None:
            return True
        with self._lock:
            if self._used(tenant) + num_bytes > self._quota_bytes:
                return False
            self._reserved[tenant] += num_bytes
            return True

    def commit(self, tenant: str, num_bytes: int) -> None:
        """Count reserved bytes for the lifetime of a record, from now on."""
        if self._quota_bytes is None:
            return
        with self._lock:
            self._unreserve(tenant, num_bytes)
            saved = self._tenant_to_saved.pop(tenant, None) or deque([_Saved(self._period(), 0)])
            if saved[-1].period != self._period():
                saved.append(_Saved(self._period(), 0))
            saved[-1] = _Saved(saved[-1].period, saved[-1].num_bytes + num_bytes)
            self._tenant_to_saved[tenant] = saved
            if len(self._tenant_to_saved) > MAX_TENANTS:
                del self._tenant_to_saved[next(iter(self._tenant_to_saved))]

    def release(self, tenant: str, num_bytes: int) -> None:
        """Stop counting reserved bytes."""
        if self._quota_bytes is not None:
            with self._lock:
                self._unreserve(tenant, num_bytes)

    def _used(self, tenant: str) -> int:
        saved = self._tenant_to_saved.get(tenant, deque())
        # A record that was saved at the end of a period lives until the end of the 16th one after that.
        while saved and saved[0].period < self._period() - NUM_PERIODS:
            saved.popleft()
        return sum(each.num_bytes for each in saved) + self._reserved[tenant]

    def _unreserve(self, tenant: str, num_bytes: int) -> None:
        self._reserved[tenant] -= num_bytes
        if not self._reserved[tenant]:
            del self._reserved[tenant]

    def _period(self) -> int:
        return int(self._clock() / self._period_s)
