"""Keeps the records that clients put, and answers the clients that wait for them.

    PutRecord ──> frames, or a place in a nursery ──> kept, or refused ──> waiters are answered ──> Stored

A record that is not kept (too large, no space) is still sent to clients that wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from mmcached.cache.store_keys import store_key
from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.store.claim_service import ClaimService
from mmcached.frontend.store.client_figures import ClientFigures
from mmcached.frontend.store.fetch_table import Wanted
from mmcached.frontend.store.nursery_service import NurseryService
from mmcached.frontend.store.record_store import PutRefusal, RecordStore
from mmcached.frontend.store.second_level import SecondLevelConnection
from mmcached.shm import EncodedRecord
from mmcached.shm.ring.nursery_table import PlacedRecord
from mmcached.shm.store import codec
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.latency import Latency
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as received
from mmcached.wire.slow_log import SlowCalls
from mmcached.wire.sockets.frames import Frame

log = structlog.get_logger("mmcached.frontend")


class PutService:
    """The puts of one store.

    Attributes:
        latency: Of kept puts, from the message to the ring.
        slow: Puts slower than `slow_log_ms`.
        on_put: Called with the name of each put record, and whether it is kept.
    """

    def __init__(
        self,
        config: ServiceConfig,
        records: RecordStore,
        channel: Channel,
        *,
        claims: ClaimService,
        nurseries: NurseryService,
        second_level: SecondLevelConnection,
        client_figures: ClientFigures,
        clock: Callable[[], float],
    ) -> None:
        self._records = records
        self._send = channel.try_send
        self._claims = claims
        self._nurseries = nurseries
        self._second_level = second_level
        self._client_figures = client_figures
        self._clock = clock
        self.latency = Latency()
        self.slow = SlowCalls(config.slow_log_ms, log.warning)
        self.on_put: Callable[[str, bool], None] | None = None

    def put(self, peer: bytes, message: received.PutRecord, payload: Sequence[Frame]) -> None:
        """Keep a record, or refuse it, and answer.

        Raises:
            RemoteProtocolError: The message or the record is invalid.
            StaleHandle: The place was not granted to this connection.
        """
        if message.place is None:
            placed: PlacedRecord | None = None
            record: EncodedRecord | PlacedRecord = codec.adopt_frames(payload)
            self._nurseries.came_inline(peer, record.nbytes)
        else:
            if payload:
                raise RemoteProtocolError(f"{len(payload)} frames beside a place", "place")
            placed = record = self._nurseries.take(peer, message.place)
        try:
            if placed is not None and not self._nurseries.has_slot:  # then keep it in the ring
                record = self._frames_of(placed)
            is_stored, reason = self._keep(message, record)
        finally:
            if placed is not None:  # whether the put was kept, refused or failed
                self._nurseries.settle(peer, placed)
        grants = self._nurseries.grants(peer)
        self._send(peer, to_client.Stored(message.request_id, self._records.epoch, is_stored, reason, grants))

    def _keep(self, message: received.PutRecord, record: EncodedRecord | PlacedRecord) -> tuple[bool, str]:
        """Offer a record to the store, and answer the clients that wait for it.

        Returns:
            Whether its key has a record now, and the reason if not.
        """
        started = self._clock()
        name = store_key(message.tenant, message.key)
        if message.claim:
            self._claims.table.check_token(message.claim, message.client_id, name)
        # A record fetched before the second level is flushed is as outdated as one computed before a new epoch.
        is_fetched = self._second_level.is_peer(message.client_id)
        is_stale = is_fetched and (self._second_level.is_flushing or self._second_level.drops.has(name))
        is_new = message.overwrites or not self._records.has(message.tenant, message.key)
        refusal = self._records.put(
            message.tenant,
            message.key,
            record,
            epoch=message.store_epoch,
            is_stale=is_stale,
            is_fetched=is_fetched,
            overwrites=message.overwrites,
            ttl_s=message.ttl_s,
            cost_s=message.cost_s,
        )
        if refusal is None:
            took_s = self._clock() - started
            self.latency.add(took_s)
            self.slow.note("put", took_s, record.nbytes, nbytes=record.nbytes, client_id=message.client_id)
            self._client_figures.put(message.client_id)
        if refusal in (PutRefusal.OLD_EPOCH, PutRefusal.DIFFERENT):
            # It is of no use to the waiters either: another client must compute it, from the new weights or for itself.
            self._claims.drop(message.claim, message.client_id)
        elif self._claims.table.has(name):
            is_kept = refusal is None  # a refused record is copied first, because its client may overwrite it
            found = self._records.find(message.tenant, message.key) if is_kept else self._frames_of(record)
            self._claims.finish(name, found)
        if self.on_put is not None:
            self.on_put(name, refusal is None)
        if self._second_level.is_on:
            wanted = Wanted(name, message.tenant, message.key)
            is_begun = refusal is None and is_new
            if is_begun and (handle := self._records.find(message.tenant, message.key)) is not None:
                self._second_level.was_kept(wanted, handle, is_fetched=is_fetched)
            else:
                self._second_level.was_not_kept(wanted, is_fetched=is_fetched)
        existed = "" if is_new else to_client.EXISTED
        return refusal is None, existed if refusal is None else self._records.text_of(refusal)

    def _frames_of(self, record: EncodedRecord | PlacedRecord) -> EncodedRecord:
        """Return a sendable copy of a record in a nursery, or the record itself. Raises as `NurseryService.copy`."""
        return self._nurseries.copy(record) if isinstance(record, PlacedRecord) else record
