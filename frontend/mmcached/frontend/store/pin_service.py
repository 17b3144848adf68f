"""Pins records for clients: eviction spares a pinned record as a leased one, until the time of its pin is over.

A pin costs other records their room, so all pins together have a share of the store, and those of a tenant with a quota
the same share of its quota.
"""

from __future__ import annotations

from collections.abc import Callable

from mmcached.cache.store_keys import store_key
from mmcached.frontend.connections.channel import Channel
from mmcached.frontend.connections.rings import NoRing
from mmcached.frontend.store.record_store import RecordStore
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.fetch_stats import PinStats
from mmcached.wire.messages.client import Present
from mmcached.wire.messages.frontend import PinRecords

MAX_PINNED_SHARE = 0.25
"""Share of the store, and of a tenant's quota, that pinned records may take."""
MAX_PINS = 4096
"""Maximum number of pinned records; at most the same share of the ring's slots."""


class PinService:
    """The pins of one store.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(
        self, config: ServiceConfig, records: RecordStore, channel: Channel, clock: Callable[[], float]
    ) -> None:
        self._max_bytes = int(MAX_PINNED_SHARE * config.store_data_bytes)
        self._records = records
        self._send = channel.try_send
        self._clock = clock

    def handle(self, peer: bytes, message: PinRecords) -> None:
        """Pin the records of some keys, or end their pins, and answer which keys have a record, or had a pin.

        Raises:
            InvalidRequest: The records exceed a limit; none of the message's is pinned.
        """
        now, in_ring = self._clock(), self._records.in_ring
        self.check(now)
        names = [store_key(message.tenant, key) for key in message.keys]
        if message.ttl_s:
            found = [name for name in names if in_ring.find(name) is not None]
            self._check_limits(message.tenant, {name for name in found if name not in in_ring.pins})
            for name in found:
                in_ring.pin(name, message.tenant, now + message.ttl_s)
            are_concerned = set(found)
        else:
            are_concerned = {name for name in names if in_ring.unpin(name)}
        self._send(peer, Present(message.request_id, [name in are_concerned for name in names]))

    def check(self, now: float) -> None:
        """End the pins whose time is over."""
        in_ring = self._records.in_ring
        for name in in_ring.pins.overdue(now):
            in_ring.unpin(name)

    def stats(self) -> PinStats:
        pins = self._records.in_ring.pins
        return PinStats(records=len(pins), bytes=pins.num_bytes)

    def _check_limits(self, tenant: str, new: set[str]) -> None:
        ring, in_ring = self._records.ring, self._records.in_ring
        if not new or isinstance(ring, NoRing):
            return
        pins, num_bytes = in_ring.pins, sum(map(in_ring.books.bytes_of, new))
        max_pins = min(MAX_PINS, int(MAX_PINNED_SHARE * ring.announcement.num_slots))
        if len(pins) + len(new) > max_pins:
            _refuse("pinned records", len(pins) + len(new), f"at most {max_pins} of all clients")
        quota = in_ring.books.quota_bytes
        if quota is not None and pins.bytes_of(tenant) + num_bytes > MAX_PINNED_SHARE * quota:
            limit = f"at most {int(MAX_PINNED_SHARE * quota)}, a quarter of a tenant's quota (store_tenant_quota_gb)"
            _refuse("pinned bytes of this tenant", pins.bytes_of(tenant) + num_bytes, limit)
        if pins.num_bytes + num_bytes > self._max_bytes:
            limit = f"at most {self._max_bytes} of all clients, a quarter of the store (store_gb)"
            _refuse("pinned bytes", pins.num_bytes + num_bytes, limit)


def _refuse(field: str, value: int, limit: str) -> None:
    raise InvalidRequest(field, value, f"{limit}; unpin other records, or wait until their time is over")
