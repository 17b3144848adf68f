"""Serves claims: one client computes a record that several lack, the others wait for it.

    ClaimRecord  ──> Records | Claimed   or no answer yet: another client computes it, and the asker waits
    ClaimRecords ──> Claims              at once: a key that another client computes is pending

A claim whose owner is unreachable or disconnected passes to the next waiter. The owners: `claim_table`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from mmcached.cache.store_keys import store_key
from mmcached.cache.verification import name_of
from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.store.claim_table import ClaimTable, ClaimTransfer, ClaimWaiter
from mmcached.frontend.store.record_reads import RecordReads
from mmcached.frontend.store.record_sender import Found, RecordSender
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.second_level import SecondLevelConnection
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import DeadlineExceeded, MmcachedError, error_to_wire
from mmcached.wire.handle import Handle
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as received
from mmcached.wire.messages.parts import Inline

NOT_EXCLUSIVE = 0
"""Token of a claim that keeps no other client from computing the record."""


class ClaimService:
    """The claims of one store; `table` lists them."""

    def __init__(
        self,
        config: ServiceConfig,
        records: RecordStore,
        channel: Channel,
        *,
        table: ClaimTable,
        reads: RecordReads,
        sender: RecordSender,
        second_level: SecondLevelConnection,
        clock: Callable[[], float],
    ) -> None:
        self.table = table
        self._records = records
        self._send = channel.try_send
        self._reads = reads
        self._sender = sender
        self._second_level = second_level
        self._clock = clock
        self._max_wait_s = config.request_timeout_s

    def claim(self, peer: bytes, message: received.ClaimRecord) -> None:
        """Send a record, or grant the claim on it, or let the client wait.

        Raises:
            ServiceUnavailable: Too many claims and waits are open.
        """
        (handle,) = self._reads.find(message, [message.key])
        if handle is not None:
            self._sender.send_records(peer, message, [handle])
            return
        if self._is_refused(message.tenant, message.key):
            self._send(peer, to_client.Claimed(message.request_id, self._records.epoch, NOT_EXCLUSIVE))
            return
        deadline = self._clock() + min(message.timeout_s, self._max_wait_s)
        waiter = ClaimWaiter(peer, message, deadline)
        token = self.table.ask(store_key(message.tenant, message.key), waiter)
        if token is not None:
            self._transfer([ClaimTransfer(waiter, token)])

    def claim_many(self, peer: bytes, message: received.ClaimRecords) -> None:
        """Answer for each key with its record, a granted claim, or that another client computes it."""
        tenant = message.tenant
        handles = self._reads.get_present(message)
        records, payload = self._sender.places(message, handles)
        found = list[Handle | Inline | int | None](records)
        missing = [index for index, place in enumerate(records) if place is None]
        if missing:
            # In the claim table each key counts as if it had been asked for alone.
            first = received.ClaimRecord(message.client_id, message.request_id, message.keys[missing[0]], 1.0, tenant)
            for index in missing:
                found[index] = NOT_EXCLUSIVE if self._is_refused(tenant, message.keys[index]) else None
            names = {index: store_key(tenant, message.keys[index]) for index in missing if found[index] is None}
            here = {i: name for i, name in names.items() if not self._second_level.fetches.is_elsewhere(name)}
            tokens = self.table.ask_many(list(here.values()), ClaimWaiter(peer, first, math.inf))
            for index, token in zip(here, tokens, strict=True):
                found[index] = token
            # Pending keys are asked for again, and count then.
            num_misses = sum(handles[index] is None and found[index] is not None for index in missing)
            self._reads.count_misses(message, num_misses)
        answer = to_client.Claims(message.request_id, self._records.epoch, found)
        if not self._send(peer, answer, payload):
            self._transfer(self.table.cancel(message.client_id, message.request_id))

    def drop(self, claim: int, client_id: str) -> None:
        """End a client's claim; it passes to the next waiter."""
        self._transfer(self.table.drop(claim, client_id))

    def _is_refused(self, tenant: str, key: str) -> bool:
        """Return whether the store keeps no record of this key, so that no client should wait for it."""
        refused = self._records.refused
        return bool(refused) and (tenant, name_of(key)) in refused

    def finish(self, name: str, found: Found) -> None:
        """End the claim on a record that was put, and send the record to its waiters."""
        for waiter in self.table.finish(name):
            self._sender.send_records(waiter.peer, waiter.message, [found])

    # ---- clients, deadlines, epochs

    def cancel(self, client_id: str, request_id: int) -> None:
        """End a client's wait; if it was granted the claim meanwhile, the claim passes to the next waiter."""
        self._transfer(self.table.cancel(client_id, request_id))

    def leave(self, client_id: str, *, but_over: bytes | None = None) -> None:
        """Pass on the claims of a client that has disconnected, or has connected anew over `but_over`."""
        self._transfer(self.table.leave(client_id, but_over=but_over))

    def check(self, now: float) -> None:
        """Fail waits whose time is over, and pass on expired claims."""
        for waiter in self.table.take_expired(now):
            timeout_s = min(waiter.message.timeout_s, self._max_wait_s)
            self._fail(waiter, DeadlineExceeded("claimrecord", timeout_s))
        self._transfer(self.table.pass_on_expired(now))

    def begin_epoch(self) -> None:
        """End all claims; one waiter per key is told to compute the record anew."""
        self._transfer(self.table.begin_epoch())

    def close(self, error: MmcachedError) -> None:
        """Fail all waits."""
        for waiter in self.table.take_all():
            self._fail(waiter, error)

    def _fail(self, waiter: ClaimWaiter, error: MmcachedError) -> None:
        self._send(waiter.peer, to_client.Failed(waiter.message.request_id, error_to_wire(error)))

    def _transfer(self, transfers: Iterable[ClaimTransfer]) -> None:
        """Tell new owners to compute; the claim of an unreachable owner passes on."""
        pending = deque(transfers)
        while pending:
            transfer = pending.popleft()
            owner = transfer.owner
            claimed = to_client.Claimed(owner.message.request_id, self._records.epoch, transfer.token)
            if not self._send(owner.peer, claimed):
                pending += self.table.drop(transfer.token, owner.client_id)
