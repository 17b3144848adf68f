"""Keeps the records that clients put, by tenant and key, in one ring.

    put ── of an older epoch? too large? over the tenant's quota? no space? ──> kept, or the reason for the refusal
    get ── returns the handle, and marks the record as used
    drop, drop_fetched, drop_expired, clear, begin_epoch ── dropped; readers with a lease read on

The first writer wins: a key that has a record keeps it, and a second put of it counts as kept, unless it overwrites the
record. Quotas and shares are kept by `record_books`; beyond these the ring may evict records of any tenant. Processed
items are records of `ITEMS_TENANT`, put only by the frontend itself, without quota and epoch. Records in nurseries are
not in the ring: `nursery_service` chooses which of them are evicted.

A new epoch makes all results of the old weights unreachable. Epochs are numbered from a clock, so that an epoch of a
former frontend is never taken for the current one, unless its records were adopted with it.

Invariants: a tenant's records stay within its quota, the clients' records and the items within their shares.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Self

from mmcached.cache.store_keys import EMBEDDINGS, NAMES_TENANT, about_record, store_key
from mmcached.cache.verification import name_of
from mmcached.frontend.connections.rings import NoRing
from mmcached.frontend.store.record_books import RecordBooks
from mmcached.frontend.store.ring_records import NoObjects, RingRecords
from mmcached.frontend.store.saved_seconds import SavedSeconds
from mmcached.shm import EncodedRecord, RingWriter
from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.nursery_table import PlacedRecord
from mmcached.shm.ring.slot_table import boot_ns, expiry_of
from mmcached.shm.ring.touch_logs import TouchLogs
from mmcached.shm.store.record_head import TensorRef
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheFull
from mmcached.wire.handle import Handle
from mmcached.wire.latency import Histogram


class PutRefusal(StrEnum):
    """Why a record is not kept; `RecordStore.text_of` fills the limit into the text."""

    NO_STORE = "the service keeps no records (store_gb = 0)"
    OLD_EPOCH = "it was computed before the last new epoch"
    DIFFERENT = "a hit of this name differed from its recomputation, and the service was not flushed since"
    TOO_LARGE = "it is larger than one record may be: at most {limit} bytes (store_max_object_mb)"
    BEYOND_TENANT_QUOTA = "beside pinned records it exceeds its tenant's quota: {limit} bytes (store_tenant_quota_gb)"
    FULL = "there is no room now: too much of the {limit} bytes is leased or pinned (store_gb)"


class RecordStore(Closeable):
    """The records of one frontend; `close` closes the ring.

    Args:
        first_epoch: Larger than any epoch of a former frontend.
        tenant_quota_bytes: Maximum bytes of one tenant's chunks together; None for no limit.
        is_shared: Whether records of other hosts are put too; the store remembers which.
        share_bytes: Maximum bytes of all clients' chunks together in the ring; None: the whole ring. 0: clients cannot
            put records.
        item_share_bytes: The same for processed items.
        max_object_bytes: Maximum size of a client's record; None: that of the ring.
        nursery_bytes: Maximum bytes of records in nurseries together, in addition to the ring.

    Attributes:
        in_ring: The records by name.
        epoch: Number of the present epoch; records of others are refused.
        sample: Which hits are recomputed, see `verification`.
        refused: Tenants and names (`verification.name_of`) of which no record is kept until the next flush.
    """

    def __init__(
        self,
        *,
        first_epoch: int,
        tenant_quota_bytes: int | None = None,
        is_shared: bool = False,
        share_bytes: int | None = None,
        item_share_bytes: int | None = None,
        max_object_bytes: int | None = None,
        nursery_bytes: int = 0,
    ) -> None:
        self.epoch = first_epoch
        self._first_epoch = first_epoch
        self.refused: dict[tuple[str, str], None] = {}
        self.sample = 0
        self._books = RecordBooks(
            quota_bytes=tenant_quota_bytes, share_bytes=share_bytes, item_share_bytes=item_share_bytes
        )
        self.in_ring = RingRecords(self._books, is_shared=is_shared, nursery_bytes=nursery_bytes)
        self._touch_logs: TouchLogs | None = None
        self._max_object_bytes = max_object_bytes
        self._num_queries = self._num_hits = 0
        self.num_puts = self.num_refusals = 0

    @classmethod
    def from_config(cls, config: ServiceConfig) -> Self:
        return cls(
            first_epoch=time.time_ns(),
            tenant_quota_bytes=config.store_tenant_quota_bytes,
            is_shared=bool(config.store_l2),
            share_bytes=config.store_main_bytes if config.ring_data_bytes else None,
            item_share_bytes=config.ring_data_bytes if config.store_data_bytes else None,
            max_object_bytes=config.store_max_object_bytes,
            nursery_bytes=config.store_nursery_bytes,
        )

    def adopt(self, ring: RingWriter) -> None:
        """Keep records in this ring from now on, and own it; until then every get is a miss.

        With the records of a former frontend its epoch goes on; if records are shared, any of them counts as fetched.

        Raises:
            LocalProtocolError: The store already has a ring.
        """
        self.in_ring.adopt(ring)
        if former_epoch := ring.board.store_epoch():
            self.epoch = self._first_epoch = former_epoch
        ring.board.set_store_epoch(self.epoch)
        self._touch_logs = ring.readers.touch_logs

    def __len__(self) -> int:
        return len(self.in_ring)

    @property
    def takes_records(self) -> bool:
        """Whether clients can put records now."""
        return not isinstance(self.ring, NoRing) and self._books.share_bytes != 0

    @property
    def num_queries(self) -> int:
        """Number of keys asked for here, or looked up by readers themselves as far as is known."""
        logs = self._touch_logs
        return self._num_queries + (logs.num_hits + logs.num_misses if logs else 0)

    @property
    def num_hits(self) -> int:
        return self._num_hits + (self._touch_logs.num_hits if self._touch_logs else 0)

    @property
    def hit_latency(self) -> Histogram:
        """Latency of lookups that readers made and measured themselves."""
        return self._touch_logs.latency.histogram() if self._touch_logs else Histogram()

    @property
    def saved(self) -> SavedSeconds:
        return self._books.saved

    @property
    def num_epochs(self) -> int:
        return self.epoch - self._first_epoch

    # ---- records

    def get(self, tenant: str, key: str, *, counts: bool = True) -> Handle | None:
        """Return the handle of a key's record, and mark it as used; None if the key has none.

        Args:
            counts: Whether to count a query, and a hit or miss.
        """
        name = store_key(tenant, key)
        handle = self.in_ring.find(name)
        self._num_queries += counts
        if handle is not None:
            self._num_hits += counts
            self.ring.records.touch(handle)
            self._books.touch(name)
            if counts:
                self._books.count_saved(name)
        return handle

    def count_misses(self, number: int) -> None:
        """Count keys for which `has` was false as queries."""
        self._num_queries += number

    def has(self, tenant: str, key: str) -> bool:
        """Return whether a key has a record, without counting it or marking it as used."""
        return self.in_ring.find(store_key(tenant, key)) is not None

    def num_rows(self, tenant: str, key: str) -> int:
        """Return the number of rows of the tensor `EMBEDDINGS` in a key's record; 0 if missing."""
        handle = self.in_ring.find(store_key(tenant, key))
        head = None if handle is None else self.in_ring.head(handle)
        if head is None:
            return 0
        tensor = head.tree.get(EMBEDDINGS)
        shape = head.tensors[tensor.index][0].shape if isinstance(tensor, TensorRef) else ()
        return shape[0] if shape else 0

    def put(
        self,
        tenant: str,
        key: str,
        encoded: EncodedRecord | PlacedRecord,
        *,
        epoch: int,
        is_stale: bool = False,
        is_fetched: bool = False,
        overwrites: bool = False,
        ttl_s: float = 0.0,
        cost_s: float = 0.0,
    ) -> PutRefusal | None:
        """Keep a record under a key, unless the key has one already.

        Args:
            encoded: A `PlacedRecord` is published where it lies.
            epoch: Epoch in which it was computed.
            is_stale: Refuse it as a record of an older epoch, even if `epoch` is current.
            is_fetched: Whether another host has computed it.
            overwrites: Replace the key's record; if refused, the key keeps the earlier one.
            ttl_s: Seconds until it expires; 0.0: never.
            cost_s: Seconds that computing it took; 0.0: unknown. The note of a record in a nursery has it, too.

        Returns:
            None if the key has a record now, or this record if it overwrites; else the reason. A put that is refused
            for lack of space may have evicted other records of its tenant, if the tenant was at its quota.
        """
        is_old = is_stale or epoch != self.epoch
        refusal = self._put(
            tenant,
            key,
            encoded,
            is_old=is_old,
            is_fetched=is_fetched,
            overwrites=overwrites,
            ttl_s=ttl_s,
            cost_s=cost_s,
        )
        if refusal is None:
            self.num_puts += 1
        else:
            self.num_refusals += 1
        return refusal

    def text_of(self, refusal: PutRefusal) -> str:
        """Return the text of a refusal, with the limit in bytes and its setting; the same text for every record."""
        ring = self.ring
        if isinstance(ring, NoRing):
            return PutRefusal.NO_STORE
        limits = {
            PutRefusal.TOO_LARGE: self._max_object_bytes or ring.max_object_bytes,
            PutRefusal.BEYOND_TENANT_QUOTA: self._books.quota_bytes,
            PutRefusal.FULL: self._books.share_bytes or ring.announcement.data_bytes,
        }
        return refusal.format(limit=limits.get(refusal))

    def drop(self, tenant: str, key: str) -> bool:
        return self.drop_name(store_key(tenant, key))

    def drop_name(self, name: str) -> bool:
        """Drop the record of this `store_key`; return whether there was one."""
        if self.in_ring.find(name) is None:
            return False
        self.in_ring.discard(name)
        return True

    def clear(self) -> None:
        """Drop all records, items included."""
        self.in_ring.clear()
        self.refused.clear()

    def begin_epoch(self) -> None:
        """Drop all records, and from now on refuse records that are being computed now."""
        self.clear()  # first: neither this process nor a successor may show an old record in the new epoch
        crash_point("flush.before_epoch")
        self.epoch += 1
        if not isinstance(self.ring, NoRing):
            self.ring.board.set_store_epoch(self.epoch)

    # ---- the ring

    def poll_hits(self) -> None:
        """Apply the hits that clients have found by themselves."""
        ring = self.ring
        if not isinstance(ring, NoRing):
            ring.readers.poll_hits()

    @property
    def ring(self) -> RingWriter | NoRing:
        return self.in_ring.ring

    def find(self, tenant: str, key: str) -> Handle | None:
        """Return the handle of a key's record, without counting it or marking it as used."""
        return self.in_ring.find(store_key(tenant, key))

    def close(self) -> None:
        self.in_ring.close()

    # ---- internals

    def _put(
        self,
        tenant: str,
        key: str,
        encoded: EncodedRecord | PlacedRecord,
        *,
        is_old: bool,
        is_fetched: bool,
        overwrites: bool,
        ttl_s: float,
        cost_s: float,
    ) -> PutRefusal | None:
        objects = self.in_ring.objects
        if isinstance(objects, NoObjects) or not self.takes_records:
            return PutRefusal.NO_STORE
        if is_old:
            return PutRefusal.OLD_EPOCH
        if self.refused and (tenant == NAMES_TENANT or (tenant, name_of(key)) in self.refused):
            return PutRefusal.DIFFERENT
        name = store_key(tenant, key)
        has_one = self.in_ring.find(name) is not None
        if has_one and not overwrites:
            return None
        if encoded.nbytes > (self._max_object_bytes or objects.ring.max_object_bytes):
            return PutRefusal.TOO_LARGE
        in_ring = not isinstance(encoded, PlacedRecord)
        # A frontend that adopts the ring rebuilds the tenant's books from this. In a nursery its writer has noted it.
        about = about_record(tenant, key, boot_ns(), cost_s) if in_ring else b""
        num_bytes = objects.chunk_bytes(name, encoded, about)
        books = self._books
        quota_bytes = books.quota_of(tenant)
        if quota_bytes is not None and num_bytes + self.in_ring.pins.bytes_of(tenant, but=name) > quota_bytes:
            return PutRefusal.BEYOND_TENANT_QUOTA
        # The former record of the key does not count against the limits, and must not be the one evicted.
        was_in_ring = has_one and books.clients.has(name)
        former_tenant = books.tenant_of(name) if has_one else tenant  # another one if it is `NAMES_TENANT`
        former_bytes = books.discharge(former_tenant, name) if has_one else 0
        self.in_ring.make_room_in_quota(tenant, num_bytes)
        has_room = not in_ring or self.in_ring.make_room(num_bytes)
        if has_one:
            books.charge(former_tenant, name, former_bytes, in_ring=was_in_ring)
        if not has_room:
            return PutRefusal.FULL
        try:
            put = objects.replace if has_one else objects.put_encoded
            handle = put(name, encoded, about, expires_at=expiry_of(ttl_s))
        except CacheFull:
            return PutRefusal.FULL
        if has_one:
            self.in_ring.forget(name)
        books.charge(tenant, name, num_bytes, in_ring=in_ring)
        if cost_s:
            self.in_ring.learn(name, tenant, key, cost_s, handle)
        if is_fetched:
            self.in_ring.fetched.add(name)
        return None
