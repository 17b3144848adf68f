"""The desk at which clients get and put records: serves their messages out of the host tier, the claims and the rows.

    GetRecords   ──> Records             a handle with a lease for each record, or its frames, or None
    ClaimRecord  ──> Records | Claimed   or nothing yet: somebody computes it, and the asker waits
    PutRecord    ──> Stored              whoever waits for that key is answered first
    TakeRow      ──> RowTaken, (Barrier ──> Reconcile)
    HaveRecords ──> Present    DropRecord ──> Stored    DropClaim, Reconcile ──> (no answer)

A record that is not kept (too large, no room) still goes to those who wait for it. A claim whose owner cannot be told,
or is gone, passes to the next who waits. How records travel: `record_sender`.

Invariants: each message is answered once; nothing here waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import structlog

from mmcached.cache.store_keys import store_key
from mmcached.frontend.store.client_rows import ClientRows
from mmcached.frontend.store.computations import Asker, Computations, Handover
from mmcached.frontend.store.host_tier import HostTier, Refusal, host_tier_from_config, store_ring_from_config
from mmcached.frontend.store.record_sender import RecordSender, Send
from mmcached.frontend.store.retried_ring import RetriedRing
from mmcached.shm.crash_points import crash_point
from mmcached.shm.store import codec
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    DeadlineExceeded,
    MmcachedError,
    RemoteProtocolError,
    RequestAborted,
    error_to_wire,
)
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as received
from mmcached.wire.sockets.channels import Frame
from mmcached.wire.stats import StoreStats

log = structlog.get_logger("mmcached.frontend")

StoreMessage = (
    received.TakeRow
    | received.GetRecords
    | received.HaveRecords
    | received.PutRecord
    | received.ClaimRecord
    | received.DropClaim
    | received.DropRecord
    | received.Reconcile
)


class StoreDesk(Closeable):
    """Everything that clients may ask of the store; `close` closes the tier too.

    Args:
        clock: monotonic seconds.
        retried_ring: what the tier lacks; None if it has one, or shall have none.
    Attributes:
        num_protocol_errors: messages that could not be true.
    """

    def __init__(
        self,
        tier: HostTier,
        computations: Computations,
        rows: ClientRows,
        *,
        send: Send,
        clock: Callable[[], float],
        max_wait_s: float,
        retried_ring: RetriedRing | None = None,
    ) -> None:
        self.tier = tier
        self.computations = computations
        self.rows = rows
        self.num_protocol_errors = 0
        self._send = send
        self._sender = RecordSender(tier, rows, send)
        self._clock = clock
        self._max_wait_s = max_wait_s
        self._retried_ring = retried_ring
        self._try_ring(clock())

    @classmethod
    def from_config(cls, config: ServiceConfig, *, send: Send, clock: Callable[[], float]) -> StoreDesk:
        """Make the desk of a service, with the store's ring if it has one, as soon as there is room for it."""
        tier = host_tier_from_config(config)
        return cls(
            tier,
            Computations(
                max_open=config.max_num_requests,
                max_per_client=config.limits.max_claims_per_client,
                claim_timeout_s=config.limits.claim_timeout_s,
                clock=clock,
            ),
            ClientRows(tier.ring),
            send=send,
            clock=clock,
            max_wait_s=config.request_timeout_s,
            retried_ring=RetriedRing("store", partial(store_ring_from_config, config))
            if config.store_data_bytes
            else None,
        )

    @property
    def announcement(self) -> RingAnnouncement | None:
        """Where the store's ring is; None if no records are kept."""
        return None if self.tier.ring is None else self.tier.ring.announcement

    def handle(self, peer: bytes, message: StoreMessage, payload: Sequence[Frame]) -> None:
        """Serve one message of a client; what is wrong with it is answered or logged, and changes nothing."""
        try:
            self._serve(peer, message, payload)
        except MmcachedError as error:
            if isinstance(error, RemoteProtocolError):
                self.num_protocol_errors += 1
            log.info("store request refused", message=type(message).__name__, code=error.code, reason=str(error))
            if not isinstance(message, received.DropClaim | received.Reconcile):
                self._send(peer, to_client.Failed(message.request_id, error_to_wire(error)))

    def _serve(self, peer: bytes, message: StoreMessage, payload: Sequence[Frame]) -> None:
        match message:
            case received.GetRecords(keys=keys, tenant=tenant):
                self._sender.send_records(peer, message, [self.tier.get(tenant, key) for key in keys])
            case received.ClaimRecord():
                self._claim(peer, message)
            case received.PutRecord():
                self._put(peer, message, payload)
            case received.HaveRecords(keys=keys, tenant=tenant):
                present = [self.tier.has(tenant, key) for key in keys]
                self._send(peer, to_client.Present(message.request_id, present))
            case received.DropRecord():
                is_dropped = self.tier.drop(message.tenant, message.key)
                reason = "dropped" if is_dropped else "it had none"
                self._send(peer, to_client.Stored(message.request_id, self.tier.epoch, False, reason))
            case received.DropClaim():
                self._tell([self.computations.drop(message.claim, message.client_id)])
            case received.TakeRow():
                self._take_row(peer, message)
            case received.Reconcile():
                num_lost = self.rows.reconcile(peer, message)
                if num_lost:
                    log.warning("leases taken back: their descriptors were lost", leases=num_lost)

    # ---- records

    def _claim(self, peer: bytes, message: received.ClaimRecord) -> None:
        handle = self.tier.get(message.tenant, message.key)
        if handle is not None:
            self._sender.send_records(peer, message, [handle])
            return
        deadline = self._clock() + min(message.timeout_s, self._max_wait_s)
        asker = Asker(peer, message, deadline)
        token = self.computations.ask(store_key(message.tenant, message.key), asker)
        if token is not None:
            self._tell([Handover(asker, token)])

    def _put(self, peer: bytes, message: received.PutRecord, payload: Sequence[Frame]) -> None:
        name = store_key(message.tenant, message.key)
        encoded = codec.adopt_frames(payload)
        if message.claim:
            self.computations.check_token(message.claim, message.client_id, name)
        refusal = self.tier.put(message.tenant, message.key, encoded, epoch=message.store_epoch)
        if refusal is Refusal.OLD_EPOCH:
            # It is of no use to those who wait either: somebody else must compute it from the new weights.
            self._tell([self.computations.drop(message.claim, message.client_id)])
        else:
            found = encoded if refusal else self.tier.find(message.tenant, message.key)
            for waiter in self.computations.take_waiters(name):
                self._sender.send_records(waiter.peer, waiter.message, [found])
            self.computations.finish(message.claim, message.client_id)
        answer = to_client.Stored(message.request_id, self.tier.epoch, refusal is None, refusal or "")
        self._send(peer, answer)

    def _tell(self, handovers: Iterable[Handover | None]) -> None:
        """Tell owners to compute; one that cannot be told passes its claim on."""
        pending = deque(handovers)
        while pending:
            handover = pending.popleft()
            if handover is None:
                continue
            asker = handover.asker
            claimed = to_client.Claimed(asker.message.request_id, self.tier.epoch, handover.token)
            if not self._send(asker.peer, claimed):
                pending.append(self.computations.drop(handover.token, asker.client_id))

    # ---- clients

    def greet(self, peer: bytes, client_id: str) -> None:
        """A client says hello: what was under way over another connection of it is lost."""
        self._tell(self.computations.leave(client_id, but_over=peer))

    def cancel(self, client_id: str, request_id: int) -> None:
        """A client does not wait any more; if it was told to compute meanwhile, the next who waits is."""
        self._tell([self.computations.cancel(client_id, request_id)])

    def end_client(self, client_id: str) -> None:
        """A client is gone: its claims pass on, and it gets no more leases."""
        self.rows.leave(client_id)
        self._tell(self.computations.leave(client_id))

    def clients(self) -> set[str]:
        """Return the clients that the desk knows, for whoever looks whether they live."""
        return self.computations.clients() | self.rows.clients()

    def _take_row(self, peer: bytes, message: received.TakeRow) -> None:
        self.greet(peer, message.client_id)
        is_attached, barrier = self.rows.take(peer, message)
        if not is_attached:
            log.info("row refused", client_id=message.client_id, row=message.row)
        self._send(peer, to_client.RowTaken(message.request_id, is_attached))
        if barrier is not None:
            self._send(peer, barrier)
            crash_point("barrier.after_send")

    # ---- time, epochs, the end

    def check(self, now: float) -> None:
        """Answer those whose deadline is over, look which rows' holders have died, and for room for a missing ring."""
        self._try_ring(now)
        for asker in self.computations.take_expired(now):
            timeout_s = min(asker.message.timeout_s, self._max_wait_s)
            self._fail(asker, DeadlineExceeded("claimrecord", timeout_s))
        self._tell(self.computations.pass_on_expired(now))
        for client_id in self.rows.check_deaths():
            log.info("client's row is dead", client_id=client_id)

    def _try_ring(self, now: float) -> None:
        if self._retried_ring is None or (ring := self._retried_ring.try_now(now)) is None:
            return
        self._retried_ring = None
        self.tier.adopt(ring)
        self.rows.adopt(ring)

    def flush(self, *, is_new_epoch: bool) -> None:
        """Forget all records.

        Args:
            is_new_epoch: also what is being computed: whoever waits for it is told to compute anew, one for each key.
        """
        if is_new_epoch:
            self.tier.begin_epoch()
            self._tell(self.computations.begin_epoch())
        else:
            self.tier.clear()

    def stats(self) -> StoreStats:
        tier = self.tier
        return StoreStats(
            queries=tier.num_queries,
            hits=tier.num_hits,
            puts=tier.num_puts,
            refusals=tier.num_refusals,
            quota_evictions=tier.num_quota_evictions,
            inline_records=self._sender.num_inline,
            withheld_records=self._sender.num_withheld,
            claims=self.computations.num_claims,
            waits=self.computations.num_waits,
            computing=self.computations.num_computing,
            waiting=self.computations.num_waiting,
            rows=len(self.rows),
            new_epochs=tier.num_epochs,
            ring=tier.ring_stats(),
        )

    def check_integrity(self) -> None:
        """Raises:
        InvariantError: tier or claims contradict themselves.
        """
        self.tier.check_integrity()
        self.computations.check_integrity()

    def close(self) -> None:
        """Fail those who wait, and remove the ring. A second call changes nothing."""
        for asker in self.computations.take_all():
            self._fail(asker, RequestAborted("the service stops; try again"))
        self.tier.close()

    def _fail(self, asker: Asker, error: MmcachedError) -> None:
        self._send(asker.peer, to_client.Failed(asker.message.request_id, error_to_wire(error)))
