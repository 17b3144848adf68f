"""Tells other hosts which records were found last on this host, and fetches what they have found into a new store.

    hits ──> names of the records found last, of each tenant in turn ──> `Orders.recent_names`, if they have changed
    a store with free room, at its start or after a flush ──> `Orders.asks_names` ──RecentNames──> prefetches

The names are digests, as on the server; so a record comes as one of `NAMES_TENANT`, and each client finds it under its
own tenant and key. Sans I/O; does not know messages.

Invariant: no prefetch begins once `SHARE` of the store is in use, or has come by this way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, zip_longest
from math import inf

from mmcached.cache.store_keys import ITEMS_TENANT, NAMES_TENANT
from mmcached.frontend.store.fetch_table import Wanted
from mmcached.frontend.store.record_store import RecordStore
from mmcached.wire.config import ServiceConfig
from mmcached.wire.fetch_stats import WARM_UP_STATES, WarmUpState
from mmcached.wire.handle import Handle

SHARE = 0.25
"""Share of the store up to which it is filled."""
MAX_OPEN = 8
"""Maximum number of its prefetches at a time: sizes are unknown before, so this bounds what comes beyond the share."""
MAX_RECENT = 512
"""Maximum number of names that are told."""
TELL_INTERVAL_S = 10.0


class WarmUp:
    """The warm-up of one store; without `store_warm_up` it does nothing.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, config: ServiceConfig, records: RecordStore, clock: Callable[[], float]) -> None:
        self._records = records
        self._clock = clock
        self._max_bytes = int(SHARE * config.store_data_bytes)
        self._max_open = min(MAX_OPEN, config.limits.max_prefetches_per_client)
        self._is_on = config.store_warm_up
        self._next_tell = -inf if self._is_on else inf
        self._names: deque[str] = deque()
        self._num_told = self._num_records = self._num_skipped = 0
        self.begin_again()

    def begin_again(self) -> None:
        """Begin with an empty store: names of before are outdated."""
        self._told: list[str] = []
        self._forget_names()
        self._is_wanted = self._is_on
        self._is_asked = False
        self._num_bytes = 0

    def take_recent(self, now: float) -> list[str]:
        """Return the names to tell other hosts, the newest first; none if it is too early, or none are new."""
        if now < self._next_tell:
            return []
        self._next_tell = now + TELL_INTERVAL_S
        by_tenant = self._records.in_ring.books.by_tenant.items()
        newest = (reversed(books.used) for tenant, books in by_tenant if tenant != ITEMS_TENANT)
        names = list(islice((name for each in zip_longest(*newest) for name in each if name is not None), MAX_RECENT))
        if names == self._told:
            return []
        self._told = names
        return names

    def take_question(self) -> bool:
        """Return whether the second level is to be asked for names now."""
        asks = self._is_wanted and not self._is_asked and self._records.takes_records and self._has_room
        self._is_asked |= asks
        return asks

    def learn(self, names: Iterable[str]) -> None:
        """Take names that other hosts have told; without a question this changes nothing."""
        if self._is_asked:
            self._is_wanted = False
            before = len(self._names)
            self._names.extend(names)
            self._num_told += len(self._names) - before

    def take_wanted(self, num_open: int) -> list[Wanted]:
        """Return the records to prefetch now.

        Args:
            num_open: Number of its prefetches that have not ended.
        """
        if not self._has_room:
            self._names.clear()
        wanted: list[Wanted] = []
        while self._names and num_open + len(wanted) < self._max_open:
            name = self._names.popleft()
            if self._records.in_ring.find(name) is None:
                wanted.append(Wanted(name, NAMES_TENANT, name))
        return wanted

    def was_kept(self, wanted: Wanted, handle: Handle) -> None:
        """Count a fetched record, if it is one of the warm-up."""
        if wanted.tenant == NAMES_TENANT:
            self._num_records += 1
            self._num_bytes += handle.nbytes

    def process_is_lost(self) -> None:
        """Ask the next process if this one has not answered, or records are left: some were under way."""
        self._is_wanted |= bool(self._names)
        self._forget_names()
        self._is_asked &= not self._is_wanted

    def figures(self, num_open: int) -> dict[str, int]:
        """Return its figures as fields of `FetchStats`.

        Args:
            num_open: As for `take_wanted`.
        """
        num_left = len(self._names) + num_open
        self._num_skipped = max(self._num_skipped, self._num_told - num_left - self._num_records)
        state: WarmUpState = "off"
        if self._is_on:
            state = "running" if num_left else "waiting" if self._is_wanted and self._has_room else "done"
        return {
            "warmed": self._num_records,
            "warm_skipped": self._num_skipped,
            "warm_up": WARM_UP_STATES.index(state),
        }

    def _forget_names(self) -> None:
        """Forget names that will be told again."""
        self._num_told -= len(self._names)
        self._names.clear()

    @property
    def _has_room(self) -> bool:
        return max(self._num_bytes, self._records.in_ring.books.num_client_bytes) < self._max_bytes
