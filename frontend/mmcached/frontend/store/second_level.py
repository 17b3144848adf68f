"""Connection to the second level: a process on this host that fetches and saves records. Never waits for it.

    TakeOrders ──> Orders       once there is a fetch, a save or a flush to order; empty at the poll's timeout
                                fetches of waiting requests first, then prefetches          (see `prefetch_table`)
    FetchesEnded, PutRecord     results of fetches                                             (see `fetch_table`)
    Orders                      also: which claims among all hosts are still held              (see `held_claims`)
    SecondLevelFlushed          the flush is done: no earlier record is found any more, or the error
    AnotherHostFlushed          it is not used until this host is flushed, too
    DropEnded                   a record is dropped on all hosts, or the error                   (see `shared_drops`)
    RecordsDropped              other hosts have dropped records: they are dropped here, too
    RecentNames                 what other hosts have found last: it is fetched at the start        (see `warm_up`)

    no process ──TakeOrders──> open ──a fetch was not answered in time──> silent ──any message──> open
      ^                          └────────────────────┴── its connection is closed: fetches end
      └──────────────────────────────────────────────────┘

While it is not open no record is fetched, and no request waits. From a flush on until it is confirmed no record is
fetched either, and no fetched record is accepted; the flush is ordered again until it is confirmed. When another host
has been flushed, no record is fetched or saved until this host is flushed, and records fetched before are dropped.

Invariant: one poll of one client is held at a time, and answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, assert_never

import structlog

from mmcached.cache.store_keys import is_on_its_way
from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.store.fetch_table import FetchTable, Parked, Wanted
from mmcached.frontend.store.held_claims import HeldClaims
from mmcached.frontend.store.level_flush import LevelFlush
from mmcached.frontend.store.prefetch_table import PrefetchTable
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.save_queue import SaveQueue
from mmcached.frontend.store.shared_drops import SharedDrops
from mmcached.frontend.store.warm_up import WarmUp
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, RemoteProtocolError, ServiceUnavailable
from mmcached.wire.fetch_stats import FetchStats
from mmcached.wire.handle import Handle
from mmcached.wire.messages.second_level import (
    AnotherHostFlushed,
    DropEnded,
    FetchesEnded,
    Orders,
    RecentNames,
    RecordsDropped,
    Save,
    SecondLevelFlushed,
    SecondLevelNotice,
    TakeOrders,
)

log = structlog.get_logger("mmcached.frontend")

MAX_ORDERED_FETCHES = 1024
MAX_ORDERED_SAVES = 32
"""Limits of one answer."""


class _Poll(NamedTuple):
    request_id: int
    deadline: float


class SecondLevelConnection:
    """The second level of one store, if it has one.

    Args:
        channel: Channel to clients; the process of the second level is one of them.
        records: Records of the store; fetched ones are dropped when another host has been flushed.
        is_computed: Returns whether a client computes a record now, by its name.
        clock: Monotonic time in seconds.

    Attributes:
        is_on: Whether the service has a second level, connected or not.
        is_apart: Whether another host has been flushed since this one.
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
        self.prefetches = PrefetchTable(config.limits.max_prefetches_per_client, self.fetches.numbers, clock)
        self.claims = HeldClaims(config.limits.l2_claim_wait_ms / 1000, is_computed=is_computed, clock=clock)
        self.saves = SaveQueue(config.limits, clock, on_lost=self.claims.end)
        self.drops = SharedDrops(clock)
        self.warm_up = WarmUp(config, records, clock)
        self._num_dropped = 0
        self._flush = LevelFlush(clock)
        self.is_apart = False
        self._channel = channel
        self._records = records
        self._clock = clock
        self._client_id = ""
        self._peer = b""
        self._poll: _Poll | None = None
        self._is_silent = False

    @property
    def is_flushing(self) -> bool:
        """Whether a flush has not been confirmed."""
        return self._flush.is_open

    @property
    def is_open(self) -> bool:
        """Whether records are fetched."""
        return bool(self._peer) and not (self._is_silent or self.is_flushing or self.is_apart)

    def is_peer(self, client_id: str) -> bool:
        return self._client_id == client_id

    def clients(self) -> set[str]:
        return self.fetches.clients() | ({self._client_id} if self._client_id else set())

    # ---- requests of clients

    def park(self, one: Parked, missing: Iterable[Wanted], *, claims: bool) -> bool:
        """Park a request as `FetchTable.park`; False while it is not open."""
        if not self.is_open:
            return False
        wanted = [each for each in missing if not self.drops.has(each.name)]
        is_parked = self.fetches.park(one, wanted, claims=claims)
        for each in wanted if len(self.prefetches) else ():
            if self.fetches.has(each.name):
                self.prefetches.arrived(each.name, "overtaken")
        return is_parked

    def prefetch(self, client_id: str, missing: Iterable[Wanted]) -> int:
        """Begin to fetch records for which no request waits; return the number of fetches, 0 while it is not open."""
        wanted = (each for each in missing if not (self.fetches.has(each.name) or self.drops.has(each.name)))
        return self.prefetches.begin(client_id, wanted) if self.is_open else 0

    def forget_record(self, name: str) -> None:
        """End the fetch and the save of a record that was dropped."""
        self.fetches.arrived(name, "failed")
        self.prefetches.arrived(name, "failed")
        self.saves.forget(name)

    def was_kept(self, wanted: Wanted, handle: Handle, *, is_fetched: bool = False) -> None:
        """End the fetch of a record that the store has begun to keep, and order its save unless it was fetched."""
        self._end_fetch(wanted, is_fetched=is_fetched)
        if is_fetched or not self.is_on or self.is_apart or is_on_its_way(wanted.key):
            self.claims.end(wanted.name)
            self.warm_up.was_kept(wanted, handle)
            return
        self.claims.will_be_saved(wanted.name)
        expires_at, cost_s = self._records.in_ring.expires_at(handle), self._records.saved.cost_s(wanted.name)
        self.saves.add(wanted.name, Save(wanted.tenant, wanted.key, handle, expires_at, cost_s))

    def was_not_kept(self, wanted: Wanted, *, is_fetched: bool) -> None:
        """End the fetch of a record that was put and refused, or whose key has kept its record."""
        self._end_fetch(wanted, is_fetched=is_fetched)
        self.claims.end(wanted.name)

    def _end_fetch(self, wanted: Wanted, *, is_fetched: bool) -> None:
        self._is_silent &= not is_fetched
        outcome = "hit" if is_fetched else "overtaken"
        self.fetches.arrived(wanted.name, outcome)
        self.prefetches.arrived(wanted.name, outcome)

    def leave(self, client_id: str, *, but_over: bytes | None = None) -> None:
        """Forget a client that has disconnected, or has connected anew over `but_over`."""
        self.fetches.leave(client_id, but_over=but_over)
        if self.is_peer(client_id) and self._peer != but_over:
            self._lose()

    # ---- messages of the process

    def handle(self, peer: bytes, message: TakeOrders | SecondLevelNotice) -> None:
        """Serve one message of the process.

        Raises:
            RemoteProtocolError: The sender is not the second level, or the service has none.
            ServiceUnavailable: Another client is the second level, and is connected.
        """
        if not isinstance(message, TakeOrders):
            if not self.is_peer(message.client_id):
                raise RemoteProtocolError("this client is not the second level", type(message).__name__)
            self._is_silent = False
        match message:
            case TakeOrders():
                self._take_orders(peer, message)
            case FetchesEnded():
                self._fetches_ended(message)
            case SecondLevelFlushed():
                self._flushed(message)
            case AnotherHostFlushed():
                self._another_host_flushed(message)
            case DropEnded():
                self.drops.ended(message.number, message.error)
            case RecordsDropped():
                self._records_dropped(message)
            case RecentNames():
                self.warm_up.learn(message.names)
            case _:
                assert_never(message)

    def _take_orders(self, peer: bytes, message: TakeOrders) -> None:
        """Hold a poll until there are orders; an earlier held poll is answered with empty orders."""
        if not self.is_on:
            raise RemoteProtocolError("this service has no second level (store_l2)", "TakeOrders")
        if not self.is_peer(message.client_id):
            if self._peer in self._channel:
                raise ServiceUnavailable("another process is this service's second level; try again later")
            self._lose()
            log.info("second level connected", client_id=message.client_id)
        self._client_id, self._peer, self._is_silent = message.client_id, peer, False
        self._flush.process_polls()
        if self._poll is not None:
            self._channel.try_send(peer, Orders(self._poll.request_id, [], []))
        self._poll = _Poll(message.request_id, self._clock() + message.timeout_s)

    def _fetches_ended(self, message: FetchesEnded) -> None:
        for end in message.fetches:
            self.prefetches.ended(end.number, end.outcome)
            is_late = not self.fetches.is_under_way(end.number)
            claimed = self.fetches.ended(end.number, end.outcome)
            if claimed is not None:
                self.claims.begin(claimed)
                if is_late:  # the asker went on without it: the record may be computed by now, or given up
                    self.claims.end(claimed)

    def _flushed(self, message: SecondLevelFlushed) -> None:
        """Apply the result of the current flush; ignores an earlier one."""
        if self._flush.ended(message.token, message.error):
            self.is_apart &= self.is_flushing
            log.info("second level flushed", error=message.error)

    def _another_host_flushed(self, message: AnotherHostFlushed) -> None:
        """Pause the second level until this host is flushed, and drop fetched records."""
        self.forget()
        self._records.in_ring.drop_fetched()
        self.is_apart = True
        log.warning("the second level is not used", reason=message.reason)

    def _records_dropped(self, message: RecordsDropped) -> None:
        for name in message.names:
            self._num_dropped += self._records.drop_name(name)
            self.forget_record(name)
        if message.are_all:
            log.warning("all records are dropped: other hosts have dropped more than this one could follow")
            self._records.clear()
            self.forget()

    # ---- flushes and deadlines

    def forget(self) -> None:
        """End all fetches and remove all saves, after the store has dropped all records."""
        self.warm_up.begin_again()
        self._end_fetches()
        self.saves.clear()

    def begin_flush(self, version: str = "") -> None:
        """Order a flush of the second level, as `Flush`; the store has dropped its records already."""
        if self.is_on:
            self._flush.begin(version)

    def flush_error(self) -> MmcachedError | None:
        """Return why the flush is not confirmed; None while it may still be."""
        return self._flush.error(has_process=bool(self._peer))

    @property
    def next_deadline(self) -> float:
        """The time at which `go_on` must be called at the latest."""
        of_requests = min(self.fetches.next_deadline, self.prefetches.next_deadline, self.drops.next_deadline)
        if self._poll is None:
            return of_requests
        of_orders = self._flush.next_order if self.is_flushing else self.saves.next_order
        return min(of_requests, of_orders, self.drops.next_order, self.claims.next_deadline, self._poll.deadline)

    def go_on(self) -> None:
        """End a turn: end late fetches, and send due orders."""
        now = self._clock()
        self.drops.expire(now)
        if self._peer and self._peer not in self._channel:
            self._lose()
        if not self._peer:
            return
        if now >= self.fetches.next_deadline and self.fetches.expire(now):
            self._is_silent = True
            log.info("the second level is silent: nothing is fetched until it says something")
        self.prefetches.expire(now)
        if self.is_open:
            self.prefetch("", self.warm_up.take_wanted(self.prefetches.num_of("")))
        if self._poll is not None:
            self._answer(self._poll, now)

    def stats(self) -> FetchStats:
        return self.fetches.stats(
            saves_dropped=self.saves.num_dropped,
            waiting_drops=len(self.drops),
            dropped=self._num_dropped,
            **self.warm_up.figures(self.prefetches.num_of("")),
        )

    # ---- internals

    def _answer(self, poll: _Poll, now: float) -> None:
        is_flush_due = now >= self._flush.next_order
        are_saves_due = now >= self.saves.next_order and not self.is_flushing
        are_claims_due = now >= self.claims.next_deadline
        has_fetches = self.fetches.has_orders or self.prefetches.has_orders
        recent, asks = self.warm_up.take_recent(now), self.is_open and self.warm_up.take_question()
        are_others_due = now >= self.drops.next_order or has_fetches or recent or asks
        if not (is_flush_due or are_saves_due or are_claims_due or are_others_due) and now < poll.deadline:
            return
        fetches = self.fetches.take_orders(self._records.epoch, MAX_ORDERED_FETCHES)
        fetches += self.prefetches.take_orders(self._records.epoch)
        saves = self.saves.take(MAX_ORDERED_SAVES) if are_saves_due else {}
        for name in saves:
            self.claims.is_saved(name)
        claims = self.claims.take(now, MAX_ORDERED_FETCHES) if are_claims_due else []
        if is_flush_due:
            self._flush.ordered()
        self._poll = None
        flush = self._flush.token if is_flush_due else 0
        version = self._flush.version if flush else ""
        drops, store_epoch = self.drops.take_orders(now), self._records.epoch
        orders = Orders(
            poll.request_id, fetches, list(saves.values()), flush, claims, version, store_epoch, drops, recent, asks
        )
        if not self._channel.try_send(self._peer, orders):
            self._lose()

    def _lose(self) -> None:
        if self._peer:
            log.info("second level lost", client_id=self._client_id)
        self._client_id, self._peer, self._poll = "", b"", None
        self.is_apart = False  # the next process reports it again
        self.claims.clear()
        self._end_fetches()
        self._flush.process_is_lost()
        self.drops.process_is_lost()
        self.warm_up.process_is_lost()

    def _end_fetches(self) -> None:
        self.fetches.end_all()
        self.prefetches.end_all()
