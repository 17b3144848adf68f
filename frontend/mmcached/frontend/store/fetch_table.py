"""Fetches from the second level, and the requests that wait for them; each record is fetched once at a time.

    park ──> asked ──a put of the name by any client; a miss in the second level; or a timeout──> ended
               └──another host computes it──> elsewhere ──the same, with a longer timeout──> ended; the timeout starts
                                                          anew whenever the second level reports it again

A parked message or request resumes when each of its fetches has ended, or is elsewhere and it does not wait for other
hosts. It resumes once, and then finds the fetched records, or proceeds without them.

After a fetch for a caller that would compute has ended without a record, this host computes it: for
`limits.l2_claim_wait_ms` the record is not fetched for such callers again. Sans I/O; does not know messages.

Invariant: each parked request waits for at least one open fetch; each fetch ends by its deadline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from math import inf
from typing import NamedTuple

from mmcached.wire.config import ServiceConfig
from mmcached.wire.fetch_stats import FetchStats
from mmcached.wire.messages.second_level import Fetch

MAX_FETCHES = 8192
"""Maximum number of open fetches; further missing records are not fetched."""


class Wanted(NamedTuple):
    """A missing record; `name` is its `store_key`."""

    name: str
    tenant: str
    key: str


@dataclass(slots=True, eq=False)
class Parked:
    """A message or request that waits for fetches.

    Attributes:
        client_id, request_id, peer: Client, request and connection of the message; empty if it is not a message.
        go_on: Called when all its fetches have ended.
        waits_elsewhere: Whether it also waits for records that another host computes.
        names: Names of the fetches for which it waits.
    """

    client_id: str
    request_id: int
    peer: bytes
    go_on: Callable[[], object]
    waits_elsewhere: bool
    names: set[str] = field(default_factory=set, init=False)


@dataclass(slots=True, eq=False)
class _Fetch:
    number: int
    wanted: Wanted
    claims: bool
    deadline: float
    is_ordered: bool = False
    parked: list[Parked] = field(default_factory=list)


class FetchTable:
    """The fetches of one store, by name.

    Args:
        clock: Monotonic time in seconds.

    Attributes:
        num_ended: Number of fetches by outcome.
        numbers: The numbers of further fetches.
    """

    def __init__(self, config: ServiceConfig, clock: Callable[[], float]) -> None:
        limits = config.limits
        self._timeout_s = limits.l2_timeout_ms / 1000
        self._claim_wait_s = limits.l2_claim_wait_ms / 1000
        self._max_parked = config.max_num_requests
        self._max_per_client = limits.max_requests_per_client
        self._clock = clock
        self.numbers = count(1)
        # Both in the order of deadlines: all fetches of one dict have the same timeout from when they are added.
        self._asked: dict[str, _Fetch] = {}
        self._elsewhere: dict[str, _Fetch] = {}
        self._number_to_name: dict[int, str] = {}
        self._number_to_late: dict[int, str] = {}  # names of fetches that may have become claims since they ended
        self._to_order: dict[str, None] = {}
        self._own_until: dict[str, float] = {}
        self._parked: dict[Parked, None] = {}
        self._ready: list[Parked] = []
        self.num_ended: Counter[str] = Counter()

    @property
    def num_parked(self) -> int:
        return len(self._parked)

    @property
    def has_orders(self) -> bool:
        return bool(self._to_order)

    @property
    def next_deadline(self) -> float:
        if not self._asked and not self._elsewhere:
            return inf
        first = (next(iter(fetches.values()), None) for fetches in (self._asked, self._elsewhere))
        return min((fetch.deadline for fetch in first if fetch is not None), default=inf)

    def stats(self, **others: int) -> FetchStats:
        """Return the figures of fetches, with `others` that are not kept here."""
        ended = self.num_ended
        return FetchStats(
            parked=self.num_parked,
            hits=ended["hit"],
            misses=ended["miss"],
            late=ended["late"],
            failed=ended["failed"],
            overtaken=ended["overtaken"],
            **others,
        )

    def is_under_way(self, number: int) -> bool:
        return number in self._number_to_name

    def clients(self) -> set[str]:
        return {one.client_id for one in self._parked if one.client_id}

    def has(self, name: str) -> bool:
        """Return whether a record is being fetched, or another host computes it."""
        return name in self._asked or name in self._elsewhere

    def is_elsewhere(self, name: str) -> bool:
        """Return whether another host computes a record, as far as is known."""
        return name in self._elsewhere

    # ---- parked requests

    def park(self, one: Parked, missing: Iterable[Wanted], *, claims: bool) -> bool:
        """Fetch records for a request; return whether it has to wait. If so, `go_on` is called later.

        Args:
            claims: Whether the request would compute missing records.
        """
        if len(self._parked) >= self._max_parked or self._num_of(one.client_id) >= self._max_per_client:
            return False
        now = self._clock()
        for wanted in missing:
            fetch = self._asked.get(wanted.name)
            if fetch is None and one.waits_elsewhere:
                fetch = self._elsewhere.get(wanted.name)
            if fetch is None and self._may_fetch(wanted.name, now, claims):
                fetch = self._begin(wanted, now)
            if fetch is not None:
                fetch.claims |= claims and not fetch.is_ordered
                fetch.parked.append(one)
                one.names.add(wanted.name)
        if not one.names:
            return False
        self._parked[one] = None
        return True

    def leave(self, client_id: str, *, but_over: bytes | None = None) -> None:
        """Forget the messages of a disconnected client, except over the connection `but_over`; fetches go on."""
        self._forget(lambda one: one.client_id == client_id and one.peer != but_over)

    def cancel(self, client_id: str, request_id: int) -> None:
        """Forget one message; an unknown one changes nothing."""
        self._forget(lambda one: one.client_id == client_id and one.request_id == request_id)

    def take_all(self) -> list[Parked]:
        """End all fetches; return and remove all waiting messages."""
        self.end_all()
        return [one for one in self.take_ready() if one.client_id]

    def take_ready(self) -> list[Parked]:
        """Return and remove the requests that have no open fetch left."""
        ready, self._ready = self._ready, []
        return ready

    # ---- fetches

    def take_orders(self, store_epoch: int, limit: int) -> list[Fetch]:
        now, orders = self._clock(), []
        for name in list(islice(self._to_order, limit)):
            del self._to_order[name]
            fetch = self._asked[name]
            fetch.is_ordered = True
            timeout_ms = max(1, round(1000 * (fetch.deadline - now)))
            orders.append(
                Fetch(fetch.number, fetch.wanted.tenant, fetch.wanted.key, store_epoch, fetch.claims, timeout_ms)
            )
        return orders

    def arrived(self, name: str, outcome: str) -> None:
        """End the fetch of a record that was offered to the store; without an open fetch this changes nothing."""
        self._own_until.pop(name, None)
        self._end(name, outcome)

    def ended(self, number: int, outcome: str) -> str | None:
        """Apply the second level's report on a fetch; an unknown fetch changes nothing.

        Returns:
            The name of the record if this host has claimed it among all hosts for a client that is to compute it, or
            was.
        """
        name = self._number_to_name.get(number)
        if name is None:
            late = self._number_to_late.pop(number, None) if outcome != "elsewhere" else None
            return late if outcome == "miss" else None
        if outcome != "elsewhere":
            ending = self._asked[name] if name in self._asked else self._elsewhere[name]
            is_claimed = ending.claims and outcome == "miss" and any(one.client_id for one in ending.parked)
            self._end(name, outcome)
            self._number_to_late.pop(number, None)
            return name if is_claimed else None
        if (known := self._elsewhere.pop(name, None)) is not None:
            known.deadline = self._clock() + self._claim_wait_s
            self._elsewhere[name] = known  # moves to the end
        elif (fetch := self._asked.pop(name, None)) is not None:
            self._to_order.pop(name, None)
            fetch.deadline = self._clock() + self._claim_wait_s
            self._elsewhere[name] = fetch
            waiting, fetch.parked = fetch.parked, [one for one in fetch.parked if one.waits_elsewhere]
            self._release(name, [one for one in waiting if not one.waits_elsewhere])
        return None

    def expire(self, now: float) -> bool:
        """End the fetches whose deadline is over; return whether one of them was never answered."""
        late = [name for name, fetch in _first_until(self._asked, now)]
        for name in (*late, *[name for name, _ in _first_until(self._elsewhere, now)]):
            self._end(name, "late")
        while self._own_until and next(iter(self._own_until.values())) <= now:
            del self._own_until[next(iter(self._own_until))]
        return bool(late)

    def end_all(self) -> None:
        """End all fetches without a record, and forget which records this host computes."""
        for name in [*self._asked, *self._elsewhere]:
            self._end(name, "failed")
        self._own_until.clear()
        self._number_to_late.clear()

    # ---- internals

    def _num_of(self, client_id: str) -> int:
        return sum(one.client_id == client_id for one in self._parked) if client_id else 0

    def _may_fetch(self, name: str, now: float, claims: bool) -> bool:
        if name in self._elsewhere or len(self._number_to_name) >= MAX_FETCHES:
            return False
        return not claims or self._own_until.get(name, now) <= now

    def _begin(self, wanted: Wanted, now: float) -> _Fetch:
        fetch = self._asked[wanted.name] = _Fetch(next(self.numbers), wanted, False, now + self._timeout_s)
        self._number_to_name[fetch.number] = wanted.name
        self._to_order[wanted.name] = None
        return fetch

    def _end(self, name: str, outcome: str) -> None:
        fetch = self._asked.pop(name, None) or self._elsewhere.pop(name, None)
        if fetch is None:
            return
        self._to_order.pop(name, None)
        del self._number_to_name[fetch.number]
        self.num_ended[outcome] += 1
        if fetch.claims and fetch.is_ordered and outcome in ("late", "overtaken"):
            self._number_to_late[fetch.number] = name
            if len(self._number_to_late) > MAX_FETCHES:
                del self._number_to_late[next(iter(self._number_to_late))]
        if fetch.claims and outcome not in ("hit", "overtaken"):
            self._own_until.pop(name, None)  # moves to the end
            self._own_until[name] = self._clock() + self._claim_wait_s
        self._release(name, fetch.parked)

    def _release(self, name: str, waiting: list[Parked]) -> None:
        for one in waiting:
            one.names.discard(name)
            if not one.names and one in self._parked:
                del self._parked[one]
                self._ready.append(one)

    def _forget(self, is_gone: Callable[[Parked], bool]) -> None:
        for one in [one for one in self._parked if is_gone(one)]:
            del self._parked[one]
        self._ready = [one for one in self._ready if not is_gone(one)]
        for fetch in chain(self._asked.values(), self._elsewhere.values()):
            fetch.parked = [one for one in fetch.parked if one in self._parked]


def _first_until(fetches: dict[str, _Fetch], now: float) -> Iterator[tuple[str, _Fetch]]:
    """Yield the fetches whose deadline is over; they come first."""
    for name, fetch in fetches.items():
        if fetch.deadline > now:
            return
        yield name, fetch
