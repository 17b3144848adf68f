"""Drops records for clients: on this host, and with a second level on all hosts.

DropRecord ──> dropped here ──no second level, or on this host alone──> Stored
                    └──> ordered at the second level ──confirmed──> Stored
                                                        └──an error, or not in time──> Failed; it is tried again
"""

from __future__ import annotations

from functools import partial

from mmcached.cache.store_keys import store_key
from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.second_level import SecondLevelConnection
from mmcached.wire.errors import ServiceUnavailable, error_to_wire
from mmcached.wire.messages.client import DROPPED, Failed, Stored
from mmcached.wire.messages.frontend import DropRecord


class DropService:
    """The drops of one store."""

    def __init__(self, records: RecordStore, channel: Channel, second_level: SecondLevelConnection) -> None:
        self._records = records
        self._send = channel.try_send
        self._second_level = second_level

    def drop(self, peer: bytes, message: DropRecord) -> None:
        """Drop a record, and answer once that is certain.

        Raises:
            ServiceUnavailable: Too many drops are not confirmed; nothing was dropped.
        """
        level, name = self._second_level, store_key(message.tenant, message.key)
        is_shared = level.is_on and not message.is_local
        if is_shared and level.drops.is_full and not level.drops.has(name):
            raise ServiceUnavailable(f"{len(level.drops)} drops are not confirmed by the second level; try again later")
        is_dropped = self._records.drop(message.tenant, message.key)
        if not is_shared:
            level.saves.forget(name)
            self._answer(peer, message.request_id, is_dropped, "")
            return
        level.forget_record(name)
        level.drops.begin(name, partial(self._answer, peer, message.request_id, is_dropped))

    def _answer(self, peer: bytes, request_id: int, is_dropped: bool, error: str) -> None:
        if error:
            reason = f"the record is dropped here; other hosts may still find it: {error}. The drop goes on"
            self._send(peer, Failed(request_id, error_to_wire(ServiceUnavailable(reason))))
            return
        reason = DROPPED if is_dropped else "it had none"
        self._send(peer, Stored(request_id, self._records.epoch, False, reason))
