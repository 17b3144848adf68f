"""Fetches ahead of need: no request waits for them, so all others go first, and few of them are under way at a time.

    begin ──> waiting ──ordered──> under way ──the second level's report, a put of the name, or a timeout──> ended
                 └──────────────────────┴──a request asks for the record: it is fetched at once instead──> ended

A record that arrives is one like any other. Sans I/O; does not know messages.

Invariant: a client has at most `limits.max_prefetches_per_client` of them, all clients `MAX_PREFETCHES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from math import inf

from mmcached.frontend.store.fetch_table import Wanted
from mmcached.wire.fetch_stats import PrefetchStats
from mmcached.wire.messages.second_level import Fetch

MAX_PREFETCHES = 4096
"""Maximum number of open prefetches of all clients."""
MAX_UNDER_WAY = 16
"""Maximum number of them that the second level has at a time; the others can still be withdrawn."""
PREFETCH_S = 30.0
"""Seconds after which a prefetch is given up."""


@dataclass(slots=True, eq=False)
class _Prefetch:
    number: int
    wanted: Wanted
    client_id: str
    deadline: float


class PrefetchTable:
    """The prefetches of one store, by name of the record.

    Args:
        numbers: Yields the numbers of fetches; no other fetch has the same.
        clock: Monotonic time in seconds.
    """

    def __init__(self, max_per_client: int, numbers: Iterable[int], clock: Callable[[], float]) -> None:
        self._max_per_client = max_per_client
        self._numbers = iter(numbers)
        self._clock = clock
        # Both in the order of deadlines, and of orders.
        self._waiting: dict[str, _Prefetch] = {}
        self._under_way: dict[str, _Prefetch] = {}
        self._number_to_name: dict[int, str] = {}
        self._client_to_num = Counter[str]()
        self._num_ended = Counter[str]()

    def __len__(self) -> int:
        return len(self._number_to_name)

    def num_of(self, client_id: str) -> int:
        """Return the number of a client's open prefetches; those of the warm-up have the client ""."""
        return self._client_to_num[client_id]

    @property
    def has_orders(self) -> bool:
        return bool(self._waiting) and len(self._under_way) < MAX_UNDER_WAY

    @property
    def next_deadline(self) -> float:
        first = (next(iter(them.values()), None) for them in (self._waiting, self._under_way))
        return min((each.deadline for each in first if each is not None), default=inf)

    def begin(self, client_id: str, missing: Iterable[Wanted]) -> int:
        """Begin to fetch records that are not being fetched; return their number. Those beyond a limit are counted."""
        num_begun, deadline = 0, self._clock() + PREFETCH_S
        for wanted in missing:
            if wanted.name in self._waiting or wanted.name in self._under_way:
                continue
            if len(self) >= MAX_PREFETCHES or self._client_to_num[client_id] >= self._max_per_client:
                self._num_ended["refused"] += 1
                continue
            made = _Prefetch(next(self._numbers), wanted, client_id, deadline)
            self._waiting[wanted.name] = made
            self._number_to_name[made.number] = wanted.name
            self._client_to_num[client_id] += 1
            num_begun += 1
        return num_begun

    def take_orders(self, store_epoch: int) -> list[Fetch]:
        """Return the orders that are due; their records are under way then."""
        now, orders = self._clock(), []
        for name in list(islice(self._waiting, max(0, MAX_UNDER_WAY - len(self._under_way)))):
            each = self._under_way[name] = self._waiting.pop(name)
            timeout_ms = max(1, round(1000 * (each.deadline - now)))
            key = each.wanted.tenant, each.wanted.key
            orders.append(Fetch(each.number, *key, store_epoch, claims=False, timeout_ms=timeout_ms, is_ahead=True))
        return orders

    def ended(self, number: int, outcome: str) -> None:
        """Apply the second level's report; an unknown number changes nothing."""
        if (name := self._number_to_name.get(number)) is not None:
            self._end(name, outcome)

    def arrived(self, name: str, outcome: str) -> None:
        """End the prefetch of a record that was put, or is fetched for a request; without one this changes nothing."""
        if name in self._waiting or name in self._under_way:
            self._end(name, outcome)

    def expire(self, now: float) -> None:
        for them in (self._waiting, self._under_way):
            while them and (first := next(iter(them.values()))).deadline <= now:
                self._end(first.wanted.name, "late")

    def end_all(self) -> None:
        for name in list(self._number_to_name.values()):
            self._end(name, "failed")

    def stats(self) -> PrefetchStats:
        ended = self._num_ended
        return PrefetchStats(
            open=len(self),
            hits=ended["hit"],
            misses=ended["miss"],
            failed=ended["late"] + ended["failed"],
            overtaken=ended["overtaken"],
            refused=ended["refused"],
        )

    def _end(self, name: str, outcome: str) -> None:
        ended = self._waiting.pop(name, None) or self._under_way.pop(name)
        del self._number_to_name[ended.number]
        self._client_to_num[ended.client_id] -= 1
        if not self._client_to_num[ended.client_id]:
            del self._client_to_num[ended.client_id]
        self._num_ended[outcome] += 1
