"""Serves the clients' messages about records, with the record store, the claims and the ring's readers.

    GetRecords   ──> Records             the frames of each record, or None
    ClaimRecord  ──> Records | Claimed   or no answer yet: another client computes it, and the asker waits
    ClaimRecords ──> Claims              at once: a key that another client computes is pending
    PutRecord    ──> Stored              waiters for that key are answered first
    OpenNursery  ──> NurseryOpened       space into which the client writes large records itself
    RegisterReader ──> ReaderRegistered  from then on the client reads records out of the ring without a message
    HaveRecords, PinRecords ──> Present    DropRecord ──> Stored    DropClaim ──> (no answer)
    Verify ──> Verification    Verified ──> (no answer): see `verification`
    PrefetchRecords ──> Prefetching    TakeOrders ──> Orders, and further messages of that process: see `second_level`

Puts: `put_service`; claims: `claim_service`; how records are sent: `record_sender`. With a second level, a message
about keys without a record is served once those have been fetched, or their fetches have failed.

Invariants: each message is answered once; no call here blocks, messages are held instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import structlog

from mmcached.cache.store_keys import ITEMS_TENANT, NAMES_TENANT, store_key
from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.connections.entry_owners import EntryOwners
from mmcached.frontend.connections.rings import late_store_ring
from mmcached.frontend.store.claim_service import ClaimService
from mmcached.frontend.store.claim_table import ClaimTable
from mmcached.frontend.store.client_figures import ClientFigures
from mmcached.frontend.store.drop_service import DropService
from mmcached.frontend.store.fetch_table import Parked, Wanted
from mmcached.frontend.store.nursery_service import NurseryService
from mmcached.frontend.store.pin_service import PinService
from mmcached.frontend.store.put_service import PutService
from mmcached.frontend.store.record_reads import RecordReads
from mmcached.frontend.store.record_sender import RecordSender
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.ring_records import gc_paused
from mmcached.frontend.store.second_level import SecondLevelConnection
from mmcached.frontend.store.verification import StoreVerification
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest, MmcachedError, RemoteProtocolError, RequestAborted, error_to_wire
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as received
from mmcached.wire.messages.verification import Verified, Verify
from mmcached.wire.process.turns import Guard
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import StoreStats

log = structlog.get_logger("mmcached.frontend")

_Writing = received.PutRecord | received.ClaimRecord | received.ClaimRecords | received.DropRecord | received.PinRecords


class StoreService(Closeable):
    """Serves all store messages of clients; `close` closes the records too.

    Args:
        home: Run directory, which has the note of the ring.

    Attributes:
        claims: Claims on records that are being computed.
        readers: Readers of the ring by client.
        second_level: Fetches and saves by another process.
        nurseries: Segments into which clients write large records.
        client_figures: Hits, misses and puts by client name.
        puts: Puts, and their latency.
        verification: Hits that hosts recompute.
        num_protocol_errors: Number of messages that violate the protocol.
    """

    def __init__(
        self, config: ServiceConfig, *, channel: Channel, clock: Callable[[], float], home: Path | None = None
    ) -> None:
        self.records = RecordStore.from_config(config)
        self.claims = ClaimTable(
            max_open=config.max_num_requests,
            max_per_client=config.limits.max_claims_per_client,
            claim_timeout_s=config.limits.claim_timeout_s,
            clock=clock,
        )
        self.readers = EntryOwners[str]()
        self.nurseries = NurseryService(config, self.records, channel)
        self._has_checksums = config.ring_has_checksums
        self.client_figures = ClientFigures()
        self.num_protocol_errors = 0
        self._send = channel.try_send
        self._sender = RecordSender(self.records, self.readers, channel)
        self.second_level = SecondLevelConnection(
            config, channel, records=self.records, is_computed=self.claims.has, clock=clock
        )
        self.claims.on_end = self.second_level.claims.end
        self._reads = RecordReads(self.records, self.readers, self.second_level, self.client_figures)
        self._claiming = ClaimService(
            config,
            self.records,
            channel,
            table=self.claims,
            reads=self._reads,
            sender=self._sender,
            second_level=self.second_level,
            clock=clock,
        )
        self._drops = DropService(self.records, channel, self.second_level)
        self._pins = PinService(config, self.records, channel, clock)
        self.puts = PutService(
            config,
            self.records,
            channel,
            claims=self._claiming,
            nurseries=self.nurseries,
            second_level=self.second_level,
            client_figures=self.client_figures,
            clock=clock,
        )
        self.verification = StoreVerification(
            self.records, home, forget_save=self.second_level.saves.forget, clock=clock
        )
        self._late_ring = late_store_ring(config, home)
        self._look_for_room(clock())

    @property
    def announcement(self) -> RingAnnouncement | None:
        return self.records.ring.announcement

    def handle(self, peer: bytes, message: received.StoreMessage, payload: Sequence[Frame]) -> None:
        """Serve one message of a client, or hold it.

        Errors of the message are answered or logged, and change nothing.
        """
        if not (self.second_level.is_open and self._is_parked(peer, message)):
            self._serve_now(peer, message, payload)

    def go_on(self, guard: Guard) -> None:
        """End a turn: send orders to the second level, serve messages that waited for it, and make space."""
        if self.nurseries.has_work or self.nurseries.is_stuck:
            guard.call("room for large records", self.nurseries.work)
        if not self.second_level.is_on:
            return
        guard.call("the second level", self.second_level.go_on)
        for one in self.second_level.fetches.take_ready():
            error = guard.call("what has waited for the second level", one.go_on)
            if error is not None and one.client_id:
                self._send(one.peer, to_client.Failed(one.request_id, error_to_wire(error)))

    def _is_parked(self, peer: bytes, message: received.StoreMessage) -> bool:
        """Fetch the missing records that a message asks for; return whether the message waits for them."""
        match message:
            case received.GetRecords(keys=keys, is_local=False) | received.ClaimRecords(keys=keys):
                claims = isinstance(message, received.ClaimRecords)
            case received.ClaimRecord(key=key):
                keys, claims = [key], True
            case _:
                return False
        missing = self._missing(message.tenant, keys)
        go_on = partial(self._serve_now, peer, message, ())
        waits_elsewhere = isinstance(message, received.ClaimRecord)
        parked = Parked(message.client_id, message.request_id, peer, go_on, waits_elsewhere)
        return bool(missing) and self.second_level.park(parked, missing, claims=claims)

    def _missing(self, tenant: str, keys: Sequence[str]) -> list[Wanted]:
        """Return the records that the store lacks, and that no client computes."""
        wanted = (Wanted(store_key(tenant, key), tenant, key) for key in keys)
        return [one for one in wanted if not (self.claims.has(one.name) or self.records.has(tenant, one.key))]

    def _serve_now(self, peer: bytes, message: received.StoreMessage, payload: Sequence[Frame]) -> None:
        try:
            self._serve(peer, message, payload)
        except MmcachedError as error:
            if isinstance(error, RemoteProtocolError):
                self.num_protocol_errors += 1
            log.info("store request refused", message=type(message).__name__, code=error.code, reason=str(error))
            if not isinstance(message, received.StoreNotice):
                self._send(peer, to_client.Failed(message.request_id, error_to_wire(error)))

    def _serve(self, peer: bytes, message: received.StoreMessage, payload: Sequence[Frame]) -> None:
        if isinstance(message, _Writing) and message.tenant in (ITEMS_TENANT, NAMES_TENANT):
            self._check_tenant(message)
        match message:
            case received.PutRecord():  # first: each earlier case would cost a put time
                self.puts.put(peer, message, payload)
            case received.GetRecords(keys=keys):
                self._sender.send_records(peer, message, self._reads.get(message, keys))
            case received.ClaimRecord():
                self._claiming.claim(peer, message)
            case received.ClaimRecords():
                self._claiming.claim_many(peer, message)
            case received.HaveRecords(keys=keys, tenant=tenant):
                self._send(peer, to_client.Present(message.request_id, [self.records.has(tenant, key) for key in keys]))
            case received.PinRecords():
                self._pins.handle(peer, message)
            case received.DropRecord():
                self._drops.drop(peer, message)
            case received.DropClaim():
                self._claiming.drop(message.claim, message.client_id)
            case received.RegisterReader():
                self._register_reader(peer, message)
            case received.OpenNursery():
                grants = self.nurseries.open(peer, message.nbytes, message.nursery)
                self._send(peer, to_client.NurseryOpened(message.request_id, grants, self._has_checksums))
            case Verify():
                self._send(peer, self.verification.begin(message))
            case Verified():
                self.verification.take(message)
            case received.PrefetchRecords(keys=keys):
                num_begun = self.second_level.prefetch(message.client_id, self._missing(message.tenant, keys))
                self._send(peer, to_client.Prefetching(message.request_id, num_begun))
            case _:
                self.second_level.handle(peer, message)

    def _check_tenant(self, message: _Writing) -> None:
        is_put_by_name = isinstance(message, received.PutRecord) and self.second_level.is_peer(message.client_id)
        if message.tenant == ITEMS_TENANT or not is_put_by_name:
            reason = "another name: the service keeps records of its own under this one"
            raise InvalidRequest("tenant", message.tenant, reason)

    # ---- clients

    def greet(self, peer: bytes, client_id: str, name: str) -> None:
        """Record a client's name; its requests over other connections are lost."""
        self.client_figures.greet(client_id, name)
        self._leave_others(peer, client_id)

    def _leave_others(self, peer: bytes, client_id: str) -> None:
        self.second_level.leave(client_id, but_over=peer)
        self._claiming.leave(client_id, but_over=peer)

    def cancel(self, client_id: str, request_id: int) -> None:
        """End a client's wait; if it was granted the claim meanwhile, the claim passes to the next waiter."""
        self.second_level.fetches.cancel(client_id, request_id)
        self._claiming.cancel(client_id, request_id)

    def end_client(self, client_id: str) -> None:
        """Pass on the claims of a disconnected client, and give it no more leases."""
        self.readers.leave(client_id)
        self.client_figures.leave(client_id)
        self.second_level.leave(client_id)
        self._claiming.leave(client_id)

    def clients(self) -> set[str]:
        of_parts = (self.claims.clients(), self.readers.owners(), self.second_level.clients())
        return set(self.client_figures.clients()).union(*of_parts)

    def _register_reader(self, peer: bytes, message: received.RegisterReader) -> None:
        self._leave_others(peer, message.client_id)
        epoch, reader_id, incarnation = message.ring_epoch, message.reader_id, message.incarnation
        is_attached = self.readers.attach(message.client_id, epoch=epoch, reader_id=reader_id, incarnation=incarnation)
        if is_attached:
            self.client_figures.attach(message.client_id, incarnation)
        else:
            log.info("reader refused", client_id=message.client_id, reader_id=reader_id)
        self._send(peer, to_client.ReaderRegistered(message.request_id, is_attached))

    # ---- deadlines, epochs, end

    @property
    def has_open(self) -> bool:
        """Whether a claim or a wait is open, which has a deadline."""
        return self.claims.num_computing > 0 or self.claims.num_waiting > 0

    def check(self, now: float) -> None:
        self._look_for_room(now)
        self._claiming.check(now)
        self._pins.check(now)
        self.records.poll_hits()
        self.records.in_ring.drop_expired()
        self.nurseries.check()
        self.verification.check(now)
        for client_id, reason in self.readers.take_dead():
            log.info("client's entry is dead", client_id=client_id, reason=reason)

    def _look_for_room(self, now: float) -> None:
        began = time.perf_counter()
        with gc_paused():
            if (ring := self._late_ring.take(now)) is not None:
                self.records.adopt(ring)
                self.nurseries.adopt()
        if ring is not None:
            self.readers.ring = ring
            logs = ring.readers.touch_logs
            logs.on_count, logs.on_end = self.client_figures.found, self.client_figures.ended
            if num_records := len(self.records):
                took_s = round(time.perf_counter() - began, 3)
                log.info("records taken over", records=num_records, took_s=took_s)

    def flush(self, *, is_new_epoch: bool) -> None:
        """Drop all records.

        Args:
            is_new_epoch: Also end all claims; one waiter per key is told to compute the record anew.
        """
        if is_new_epoch:
            self.records.begin_epoch()
            self._claiming.begin_epoch()
        else:
            self.records.clear()
        self.second_level.forget()

    def stats(self) -> StoreStats:
        records = self.records
        return StoreStats(
            queries=records.num_queries,
            hits=records.num_hits,
            puts=records.num_puts,
            refusals=records.num_refusals,
            quota_evictions=records.in_ring.num_quota_evictions,
            expired=records.in_ring.num_expired,
            inline_records=self._sender.num_inline,
            withheld_records=self._sender.num_withheld,
            claims=self.claims.num_claims,
            waits=self.claims.num_waits,
            computing=self.claims.num_computing,
            waiting=self.claims.num_waiting,
            readers=len(self.readers),
            nurseries=len(self.nurseries.books),
            nursery_bytes=self.nurseries.books.held_bytes,
            nursery_puts=self.nurseries.num_puts,
            nursery_refusals=self.nurseries.num_refusals,
            promotions=self.nurseries.copies.num_done,
            new_epochs=records.num_epochs,
            hit_latency=records.hit_latency,
            put_latency=self.puts.latency.histogram(),
            ring=self.nurseries.ring_stats(),
            fetches=self.second_level.stats(),
            prefetches=self.second_level.prefetches.stats(),
            pins=self._pins.stats(),
            verified=self.verification.num_verified,
            different=self.verification.num_different,
            refused_names=len(records.refused),
            saved=records.saved.stats(),
        )

    def close(self) -> None:
        """Fail all waiting requests, and remove the ring. A second call changes nothing."""
        self._claiming.close(RequestAborted("the service stops; try again"))
        for one in self.second_level.fetches.take_all():
            self._send(one.peer, to_client.Failed(one.request_id, error_to_wire(RequestAborted("the service stops"))))
        self.records.close()
        self._late_ring.close()
