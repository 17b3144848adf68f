"""Speaks with the second level: a process that fetches and saves records beside this one, which never waits for it.

    TakeOrders ──> Orders       as soon as there is something to fetch, to save, or a flush; empty when its time is over
    FetchesEnded, PutRecord     what has become of fetches                                        (see `fetch_table`)
    Orders                      also: which claims among all hosts are still held                 (see `held_claims`)
    SecondLevelFlushed          it finds nothing of before any more, or why that is not so
    AnotherHostFlushed          it is not used until this host is flushed, too

    nobody ──TakeOrders──> open ──a fetch was not answered in time──> silent ──it says anything──> open
      ^                     └────────────────────┴── its connection is closed: fetches end
      └─────────────────────────────────────────────┘

While it is not open nothing is fetched, and nobody waits. From a flush on until it is confirmed nothing is fetched
either, and nothing that was fetched is taken; it is ordered again until it is confirmed. When another host has been
flushed, nothing is fetched or saved until this one is, and what was fetched before is forgotten.

Invariant: one poll of one client is held at a time, and answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import NamedTuple

import structlog

from mmcached.cache.store_keys import is_on_its_way
from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.store.fetch_table import FetchTable, Parked, Wanted
from mmcached.frontend.store.held_claims import HeldClaims
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.save_queue import SaveQueue
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, RemoteProtocolError, SecondLevelNotFlushed, ServiceUnavailable
from mmcached.wire.handle import Handle
from mmcached.wire.messages.client import Orders
from mmcached.wire.messages.frontend import AnotherHostFlushed, FetchesEnded, SecondLevelFlushed, TakeOrders
from mmcached.wire.messages.parts import Save
from mmcached.wire.stats import FetchStats

log = structlog.get_logger("mmcached.frontend")

MAX_ORDERED_FETCHES = 1024
MAX_ORDERED_SAVES = 32
"""Of one answer."""
SAVES_WAIT_S = 0.01
"""How long the first of some saves waits for others: nobody waits for it, and puts that follow each other go first."""
FLUSH_TIMEOUT_S = 8.0
"""How long a flush waits to be confirmed before who asks for it is told that it is not."""
FLUSH_AGAIN_S = 1.0


class _Poll(NamedTuple):
    request_id: int
    deadline: float


class SecondLevel:
    """The second level of one store, as far as there is one.

    Args:
        channel: to clients; the process is one of them.
        records: the store's; what was fetched into it is forgotten when another host has been flushed.
        is_computed: returns whether a client computes a record now, by its name.
        clock: monotonic seconds.
    Attributes:
        is_on: the service has one, whether the process is there or not.
        is_flushing: a flush has not been confirmed.
        is_apart: another host has been flushed since this one.
    """

    def __init__(
        self,
        config: ServiceConfig,
        channel: Channel,
        *,
        records: RecordStore,
        is_computed: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        self.is_on = bool(config.store_l2)
        self.fetches = FetchTable(config, clock)
        claim_s = config.limits.l2_claim_wait_ms / 1000
        self.claims = HeldClaims(claim_s, is_computed=is_computed, clock=clock)
        self.saves = SaveQueue(config.limits, clock, on_lost=self.claims.end)
        self.is_flushing = False
        self.is_apart = False
        self._channel = channel
        self._records = records
        self._clock = clock
        self._client_id = ""
        self._peer = b""
        self._poll: _Poll | None = None
        self._is_silent = False
        self._saves_from = -inf
        self._flush_token = 0
        self._flush_from = self._flush_until = -inf
        self._flush_error = ""

    @property
    def is_open(self) -> bool:
        """Records are fetched."""
        return bool(self._peer) and not (self._is_silent or self.is_flushing or self.is_apart)

    def is_peer(self, client_id: str) -> bool:
        """Return whether a client is the process of the second level."""
        return self._client_id == client_id

    def clients(self) -> set[str]:
        return self.fetches.clients() | ({self._client_id} if self._client_id else set())

    # ---- what clients do

    def park(self, one: Parked, missing: Iterable[Wanted], *, claims: bool) -> bool:
        """As `FetchTable.park`; False while it is not open."""
        return self.is_open and self.fetches.park(one, missing, claims=claims)

    def was_put(self, client_id: str, wanted: Wanted, place: Handle | None) -> None:
        """Take note that a client has offered a record to the store.

        Args:
            place: of the record, if the store has just begun to keep it.
        """
        is_fetched = self.is_peer(client_id)
        if is_fetched:
            self._is_silent = False
        self.fetches.arrived(wanted.name, "hit" if is_fetched else "overtaken")
        takes_saves = self.is_on and not self.is_apart
        if not takes_saves or is_fetched or place is None or is_on_its_way(wanted.key):
            self.claims.end(wanted.name)
        else:
            if not self.saves:
                self._saves_from = self._clock() + SAVES_WAIT_S
            self.claims.will_be_saved(wanted.name)
            expires_at = self._records.expires_at(place)
            self.saves.add(wanted.name, Save(wanted.tenant, wanted.key, place, expires_at))

    def leave(self, client_id: str, *, but_over: bytes | None = None) -> None:
        """Forget a client that is gone, or has come anew over another connection."""
        self.fetches.leave(client_id, but_over=but_over)
        if self.is_peer(client_id) and self._peer != but_over:
            self._lose()

    # ---- what the process says

    def take_orders(self, peer: bytes, message: TakeOrders) -> None:
        """Hold a poll until there is something to order; the one that was held is answered, with nothing.

        Raises:
            RemoteProtocolError: there is no second level.
            ServiceUnavailable: another client is the second level, and is connected.
        """
        if not self.is_on:
            raise RemoteProtocolError("this service has no second level (store_l2)", "TakeOrders")
        if not self.is_peer(message.client_id):
            if self._peer in self._channel:
                raise ServiceUnavailable("another process is this service's second level; try again later")
            self._lose()
            log.info("second level connected", client_id=message.client_id)
        self._client_id, self._peer, self._is_silent = message.client_id, peer, False
        if self._flush_from == inf:  # ordered, and no word of it before this one: it was lost
            self._flush_from = self._clock() + FLUSH_AGAIN_S
        if self._poll is not None:
            self._channel.try_send(peer, Orders(self._poll.request_id, [], []))
        self._poll = _Poll(message.request_id, self._clock() + message.timeout_s)

    def fetches_ended(self, message: FetchesEnded) -> None:
        """Raise RemoteProtocolError if it does not come from the second level."""
        self._check_peer(message)
        for end in message.fetches:
            is_late = not self.fetches.is_under_way(end.number)
            claimed = self.fetches.ended(end.number, end.outcome)
            if claimed is not None:
                self.claims.begin(claimed)
                if is_late:  # who had asked for it went on without: it may be computed by now, or over
                    self.claims.end(claimed)

    def flushed(self, message: SecondLevelFlushed) -> None:
        """Take note of what has become of a flush; of a former one it changes nothing. Raises as `fetches_ended`."""
        self._check_peer(message)
        if not self.is_flushing or message.token != self._flush_token:
            return
        self._flush_error = message.error
        self.is_flushing = bool(message.error)
        self.is_apart &= self.is_flushing
        self._flush_from = self._clock() + FLUSH_AGAIN_S
        log.info("second level flushed", error=message.error)

    def another_host_flushed(self, message: AnotherHostFlushed) -> None:
        """Use the second level no more until this host is flushed, and forget what it has brought. Raises as
        `fetches_ended`.
        """
        self._check_peer(message)
        self.forget()
        self._records.drop_fetched()
        self.is_apart = True
        log.warning("the second level is not used", reason=message.reason)

    # ---- flushes, time

    def forget(self) -> None:
        """The store has forgotten all records: end what is being fetched, and save none of them."""
        self.fetches.end_all()
        self.saves.clear()

    def begin_flush(self) -> None:
        """Have everything forgotten that the second level has, for all hosts; the store has forgotten already."""
        if not self.is_on:
            return
        self._flush_token += 1
        self._flush_from, self._flush_until = -inf, self._clock() + FLUSH_TIMEOUT_S
        self._flush_error = ""
        self.is_flushing = True

    def flush_error(self) -> MmcachedError | None:
        """Return why the flush that is under way is not confirmed; None: it may be yet."""
        error = self._flush_error
        if not error and self._clock() >= self._flush_until:
            error = f"{self._flush_step} for {FLUSH_TIMEOUT_S:g} s: see the log of the role `second level`"
        return SecondLevelNotFlushed(error) if error else None

    @property
    def _flush_step(self) -> str:
        """What a flush that has not been confirmed waits for."""
        if not self._peer:
            return "its process has not been there"
        if self._flush_from == inf:
            return "its process was told, and has not answered"
        return "its process has not asked what to do"

    @property
    def next_deadline(self) -> float:
        """When there is something to do at the latest."""
        if self._poll is None:
            return self.fetches.next_deadline
        saves_from = self._saves_from if self.saves else inf
        return min(
            self.fetches.next_deadline,
            self.claims.next_deadline,
            self._poll.deadline,
            self._flush_from if self.is_flushing else saves_from,
        )

    def go_on(self) -> None:
        """End a turn: end what is late, and order what there is to do."""
        if not self._peer:
            return
        now = self._clock()
        if self._peer not in self._channel:
            self._lose()
            return
        if now >= self.fetches.next_deadline and self.fetches.expire(now):
            self._is_silent = True
            log.info("the second level is silent: nothing is fetched until it says something")
        if self._poll is not None:
            self._answer(self._poll, now)

    def stats(self) -> FetchStats:
        ended = self.fetches.num_ended
        return FetchStats(
            parked=self.fetches.num_parked,
            hits=ended["hit"],
            misses=ended["miss"],
            late=ended["late"],
            failed=ended["failed"],
            overtaken=ended["overtaken"],
            saves_dropped=self.saves.num_dropped,
        )

    # ---- how

    def _answer(self, poll: _Poll, now: float) -> None:
        is_flush_due = self.is_flushing and now >= self._flush_from
        are_saves_due = bool(self.saves) and now >= self._saves_from and not self.is_flushing
        are_claims_due = now >= self.claims.next_deadline
        if not (is_flush_due or are_saves_due or are_claims_due or self.fetches.has_orders or now >= poll.deadline):
            return
        fetches = self.fetches.take_orders(self._records.epoch, MAX_ORDERED_FETCHES)
        saves = self.saves.take(MAX_ORDERED_SAVES) if are_saves_due else {}
        for name in saves:
            self.claims.is_saved(name)
        claims = self.claims.take(now, MAX_ORDERED_FETCHES) if are_claims_due else []
        if is_flush_due:
            self._flush_from = inf  # until it has said what became of it
        self._poll = None
        flush = self._flush_token if is_flush_due else 0
        if not self._channel.try_send(
            self._peer, Orders(poll.request_id, fetches, list(saves.values()), flush, claims)
        ):
            self._lose()

    def _check_peer(self, message: FetchesEnded | SecondLevelFlushed | AnotherHostFlushed) -> None:
        if not self.is_peer(message.client_id):
            raise RemoteProtocolError("this client is not the second level", type(message).__name__)
        self._is_silent = False

    def _lose(self) -> None:
        if self._peer:
            log.info("second level lost", client_id=self._client_id)
        self._client_id, self._peer, self._poll = "", b"", None
        self.is_apart = False  # the next process says so again
        self.claims.clear()
        self.fetches.end_all()
        self._flush_from = -inf
