"""Keeps the records that clients put, by tenant and key, and processed items, in one ring.

    put ── of an older epoch? too large? over the tenant's quota? no space? ──> kept, or the reason for the refusal
    get ── returns the handle, and marks the record as used
    drop, drop_fetched, drop_expired, clear, begin_epoch ── dropped; readers with a lease read on

The first writer wins: a key that has a record keeps it, and a second put of it counts as kept, unless it overwrites the
record. A tenant over its quota loses its own records, in the order of `tenant_books`; the ring may evict records of any
tenant.

Processed items are records of `ITEMS_TENANT`, put only by the frontend, without quota and epoch. Where the ring holds
both, each has a share, and neither takes space of the other: all clients' records together stay within their share, and
items within theirs, also in the order of `tenant_books`. Pinned or leased records stay. Records in nurseries are not in
the ring: `nursery_service` chooses which of them are evicted.

A new epoch makes all results of the old weights unreachable. Epochs are numbered from a clock, so that an epoch of a
former frontend is never taken for the current one, unless its records were adopted with it.

Invariants: a tenant's records stay within its quota, the clients' records and the items within their shares.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Self

from mmcached.cache.store_keys import (
    EMBEDDINGS,
    ITEMS_TENANT,
    About,
    about_item,
    about_record,
    num_embeds_of,
    parse_about,
    store_key,
)
from mmcached.frontend.connections.rings import NoRing
from mmcached.frontend.store.tenant_books import TenantBooks
from mmcached.shm import EncodedRecord, ObjectStoreWriter, RingWriter
from mmcached.shm.crash_points import crash_point
from mmcached.shm.ring.chunks import RingClaim
from mmcached.shm.ring.nursery_table import PlacedRecord
from mmcached.shm.ring.slot_table import boot_ns, expiry_of, has_expired
from mmcached.shm.ring.touch_logs import TouchLogs
from mmcached.shm.store import codec
from mmcached.shm.store.record_head import Head, TensorRef, head_of
from mmcached.shm.store.record_note import parse_note
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    CacheFull,
    ItemTooLarge,
    LocalProtocolError,
    RemoteProtocolError,
    StaleHandle,
)
from mmcached.wire.handle import Handle
from mmcached.wire.latency import Histogram

EXPIRED_AT_ONCE = 256
"""Maximum number of expired records dropped in one turn: 4 ms."""


class Refusal(StrEnum):
    """Why a record is not kept; `RecordStore.text_of` fills the limit into the text."""

    NO_STORE = "the service keeps no records (store_gb = 0)"
    OLD_EPOCH = "it was computed before the last new epoch"
    TOO_LARGE = "it is larger than one record may be: at most {limit} bytes (store_max_object_mb)"
    BEYOND_TENANT_QUOTA = "it is larger than its tenant's quota: {limit} bytes (store_tenant_quota_gb)"
    FULL = "there is no room now: too much of the {limit} bytes is leased (store_gb)"


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
        self._store: ObjectStoreWriter | _NoStore = _NoStore()
        self._touch_logs: TouchLogs | None = None
        self._quota_bytes = tenant_quota_bytes
        self._tenant_to_books: dict[str, TenantBooks] = {}
        self._key_to_tenant: dict[str, str] = {}
        self._is_shared = is_shared
        self._share_bytes = share_bytes
        self._item_share_bytes = item_share_bytes
        self._clients_books = TenantBooks()  # all clients' records in the ring, if they have a share
        self._max_object_bytes = max_object_bytes
        self._nursery_bytes = nursery_bytes
        self._fetched: set[str] = set()
        self._num_queries = self._num_hits = 0
        self.num_puts = self.num_refusals = self.num_quota_evictions = self.num_share_evictions = self.num_expired = 0
        self.num_item_puts = self.num_item_evictions = 0

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
        if isinstance(self._store, ObjectStoreWriter):
            raise LocalProtocolError("this store has a ring")
        self._store = ObjectStoreWriter(
            ring, on_evict=self._evicted, on_hit=self._touch, nursery_bytes=self._nursery_bytes
        )
        if former_epoch := ring.board.store_epoch():
            self.epoch = self._first_epoch = former_epoch
        ring.board.set_store_epoch(self.epoch)
        self._touch_logs = ring.readers.touch_logs
        for name, (num_bytes, about) in self._store.adopted.items():
            known = parse_about(about)
            in_ring = not self._lies_in_nursery(name)
            if known is None or not _is_about(known, name, in_ring) or _is_of_probe(known, about):
                self._store.discard(name)
            else:
                self._charge(known.tenant, name, num_bytes, in_ring=in_ring)
                if self._is_shared and known.tenant != ITEMS_TENANT:
                    self._fetched.add(name)
        self._store.adopted.clear()
        if self._quota_bytes is not None:
            for tenant in self._tenant_to_books.keys() - {ITEMS_TENANT}:
                self._make_room_in_quota(tenant, self._quota_bytes)
        self._make_room(self._clients_books, self._share_bytes, 0)

    def __len__(self) -> int:
        return len(self._store)

    @property
    def takes_records(self) -> bool:
        """Whether clients can put records now."""
        return isinstance(self._store, ObjectStoreWriter) and self._share_bytes != 0

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
    def num_epochs(self) -> int:
        return self.epoch - self._first_epoch

    # ---- records

    def get(self, tenant: str, key: str, *, counts: bool = True) -> Handle | None:
        """Return the handle of a key's record, and mark it as used; None if the key has none.

        Args:
            counts: Whether to count a query, and a hit or miss.
        """
        name = store_key(tenant, key)
        handle = self._find(name)
        self._num_queries += counts
        if handle is not None:
            self._num_hits += counts
            self._store.ring.records.touch(handle)
            self._touch(name)
        return handle

    def count_misses(self, number: int) -> None:
        """Count keys for which `has` was false as queries."""
        self._num_queries += number

    def has(self, tenant: str, key: str) -> bool:
        """Return whether a key has a record, without counting it or marking it as used."""
        return self._find(store_key(tenant, key)) is not None

    def num_rows(self, tenant: str, key: str) -> int:
        """Return the number of rows of the tensor `EMBEDDINGS` in a key's record; 0 if missing."""
        handle = self._find(store_key(tenant, key))
        head = None if handle is None else self.head(handle)
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
    ) -> Refusal | None:
        """Keep a record under a key, unless the key has one already.

        Args:
            encoded: A `PlacedRecord` is published where it lies.
            epoch: Epoch in which it was computed.
            is_stale: Refuse it as a record of an older epoch, even if `epoch` is current.
            is_fetched: Whether another host has computed it.
            overwrites: Replace the key's record; if refused, the key keeps the earlier one.
            ttl_s: Seconds until it expires; 0.0: never.

        Returns:
            None if the key has a record now, or this record if it overwrites; else the reason. A put that is refused
            for lack of space may have evicted other records of its tenant, if the tenant was at its quota.
        """
        is_old = is_stale or epoch != self.epoch
        refusal = self._put(
            tenant, key, encoded, is_old=is_old, is_fetched=is_fetched, overwrites=overwrites, ttl_s=ttl_s
        )
        if refusal is None:
            self.num_puts += 1
        else:
            self.num_refusals += 1
        return refusal

    def text_of(self, refusal: Refusal) -> str:
        """Return the text of a refusal, with the limit in bytes and its setting; the same text for every record."""
        ring = self.ring
        if isinstance(ring, NoRing):
            return Refusal.NO_STORE
        limits = {
            Refusal.TOO_LARGE: self._max_object_bytes or ring.max_object_bytes,
            Refusal.BEYOND_TENANT_QUOTA: self._quota_bytes,
            Refusal.FULL: self._share_bytes or ring.announcement.data_bytes,
        }
        return refusal.format(limit=limits.get(refusal))

    # ---- records in nurseries

    def evict(self, handle: Handle) -> bool:
        """Evict a record of a nursery; return False if it is leased or pinned."""
        return isinstance(self._store, ObjectStoreWriter) and self._store.ring.records.evict(handle)

    def begin_copy(self, handle: Handle, *, evicts: bool) -> RingClaim | None:
        """Claim space in the ring for a copy of a nursery's record; None without space.

        `end_copy` or `abort_copy` must follow. A record whose note does not match its key is not copied: contents of
        the ring are trusted.

        Args:
            evicts: Whether other records may be evicted; else only free space is claimed.
        """
        if isinstance(self._store, _NoStore):
            return None
        name = self._store.key_of(handle)
        try:
            note = self._store.ring.records.note(handle)
        except StaleHandle:
            return None
        parsed = parse_note(note)
        known = None if parsed is None or parsed[0] != name else parse_about(parsed[1])
        if known is None or not _is_about(known, name, in_ring=False):
            return None
        num_bytes = self._tenant_to_books[self._key_to_tenant[name]].bytes_of(name)
        if not evicts:
            is_within = self._share_bytes is None or self._clients_books.num_bytes + num_bytes <= self._share_bytes
            if not (is_within and self._store.ring.records.has_free_place(num_bytes)):
                return None
        if not self._make_room(self._clients_books, self._share_bytes, num_bytes):
            return None
        try:
            claim = self._store.ring.claim(handle.nbytes, note)
        except (ItemTooLarge, CacheFull):
            return None
        crash_point("promote.after_claim")
        if self._share_bytes is not None:
            self._clients_books.add(name, num_bytes)
            self._clients_books.touch(name)
        return claim

    def end_copy(self, handle: Handle, claim: RingClaim, *, is_proven: bool) -> bool:
        """Publish a copy in place of the record in a nursery; return whether that record was still there.

        Args:
            is_proven: As for `RingWriter.commit`.
        """
        if isinstance(self._store, _NoStore):
            return False
        return self._store.end_copy(handle, claim, is_proven=is_proven) is not None

    def abort_copy(self, handle: Handle, claim: RingClaim) -> None:
        """Release the space of a copy, and drop the record, if it is still there: it cannot be read."""
        if isinstance(self._store, ObjectStoreWriter):
            self._store.ring.abort(claim)
            self.drop_spoiled(handle)

    def drop_spoiled(self, handle: Handle) -> None:
        """Drop a record that its client has overwritten in its nursery; a missing one changes nothing."""
        if isinstance(self._store, ObjectStoreWriter) and self._store.ring.records.is_current(handle):
            name = self._store.key_of(handle)
            self._store.discard(name)
            self._forget(name)

    def _lies_in_nursery(self, name: str) -> bool:
        handle = self._store.find(name)
        return handle is not None and handle.nursery > 0

    def drop(self, tenant: str, key: str) -> bool:
        name = store_key(tenant, key)
        if self._find(name) is None:
            return False
        self._store.discard(name)
        self._forget(name)
        return True

    def drop_expired(self) -> None:
        """Drop up to `EXPIRED_AT_ONCE` expired records to free their space; no lookup finds them any more."""
        for name in self._store.discard_expired(EXPIRED_AT_ONCE):
            self._forget(name)
            self.num_expired += 1

    def drop_fetched(self) -> None:
        """Drop the records that other hosts may have computed."""
        for name in list(self._fetched):
            self._store.discard(name)
            self._forget(name)

    # ---- processed items

    def find_item(self, mm_hash: str) -> tuple[Handle, int] | None:
        """Return an item's handle and number of embeddings; None if missing. Does not mark it as used."""
        handle = self._store.find(store_key(ITEMS_TENANT, mm_hash))
        if handle is None or isinstance(self._store, _NoStore):
            return None
        num_embeds = num_embeds_of(self._store.about(handle))
        return None if num_embeds is None else (handle, num_embeds)

    def has_item(self, mm_hash: str) -> bool:
        return self._store.find(store_key(ITEMS_TENANT, mm_hash)) is not None

    def put_item(self, mm_hash: str, encoded: EncodedRecord, num_embeds: int) -> Handle | None:
        """Keep a missing item; return its handle, or None if there is no space for it now, or ever."""
        if isinstance(self._store, _NoStore):
            return None
        name, about = store_key(ITEMS_TENANT, mm_hash), about_item(mm_hash, num_embeds, boot_ns())
        num_bytes = self._store.chunk_bytes(name, encoded, about)
        if not self._make_room(self._item_books, self._item_share_bytes, num_bytes):
            return None
        try:
            handle = self._store.put_encoded(name, encoded, about)
        except (ItemTooLarge, CacheFull):
            return None
        self._charge(ITEMS_TENANT, name, num_bytes)
        self.num_item_puts += 1
        return handle

    @property
    def num_items(self) -> int:
        return len(self._item_books.key_to_bytes)

    @property
    def item_bytes(self) -> int:
        return self._item_books.num_bytes

    def touch_item(self, mm_hash: str, handle: Handle) -> None:
        """Mark an item as used."""
        self._store.ring.records.touch(handle)
        self._tenant_to_books[ITEMS_TENANT].touch(store_key(ITEMS_TENANT, mm_hash))

    def drop_item(self, mm_hash: str) -> None:
        """Drop an item; readers with a lease read on. A missing item changes nothing."""
        name = store_key(ITEMS_TENANT, mm_hash)
        if self._store.find(name) is not None:
            self._store.discard(name)
            self._forget(name)

    def drop_items(self) -> None:
        for name in self._item_books.key_to_bytes:
            self._store.discard(name)
            self._forget(name)

    def clear(self) -> None:
        """Drop all records, items included."""
        self._store.clear()
        self._tenant_to_books.clear()
        self._clients_books = TenantBooks()
        self._key_to_tenant.clear()
        self._fetched.clear()

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
        return self._store.ring

    def find(self, tenant: str, key: str) -> Handle | None:
        """Return the handle of a key's record, without counting it or marking it as used."""
        return self._find(store_key(tenant, key))

    def expires_at(self, handle: Handle) -> int:
        """Return the expiry of a current record, as in `slot_table`; 0: never."""
        return self.ring.records.expires_at(handle)

    def head(self, handle: Handle) -> Head | None:
        """Return the head of a record; None if its client has overwritten it, and then drop the record."""
        ring = self._store.ring
        try:
            return head_of(lambda nbytes: ring.records.read(handle, nbytes).data, handle.nbytes)
        except (StaleHandle, RemoteProtocolError):
            self.drop_spoiled(handle)
            return None

    def frames(self, handle: Handle) -> list[codec.Frame]:
        """Copy a record out as message frames.

        Raises:
            StaleHandle: The handle is not current.
            StaleHandle, RemoteProtocolError: Its client has overwritten it in its nursery.
        """
        return codec.adopt(self._store.ring.records.read(handle)).frames()

    # ---- integrity and end

    def close(self) -> None:
        self._store.close()
        self._tenant_to_books.clear()
        self._key_to_tenant.clear()

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
    ) -> Refusal | None:
        if isinstance(self._store, _NoStore) or not self.takes_records:
            return Refusal.NO_STORE
        if is_old:
            return Refusal.OLD_EPOCH
        name = store_key(tenant, key)
        has_one = self._find(name) is not None
        if has_one and not overwrites:
            return None
        if encoded.nbytes > (self._max_object_bytes or self._store.ring.max_object_bytes):
            return Refusal.TOO_LARGE
        in_ring = not isinstance(encoded, PlacedRecord)
        # A frontend that adopts the ring rebuilds the tenant's books from this. In a nursery its writer has noted it.
        about = about_record(tenant, key, boot_ns()) if in_ring else b""
        num_bytes = self._store.chunk_bytes(name, encoded, about)
        if self._quota_bytes is not None and num_bytes > self._quota_bytes:
            return Refusal.BEYOND_TENANT_QUOTA
        # The former record of the key does not count against the limits, and must not be the one evicted.
        was_in_ring = has_one and self._clients_books.has(name)
        former_bytes = self._discharge(tenant, name) if has_one else 0
        if self._quota_bytes is not None:
            self._make_room_in_quota(tenant, self._quota_bytes - num_bytes)
        has_room = not in_ring or self._make_room(self._clients_books, self._share_bytes, num_bytes)
        if has_one:
            self._charge(tenant, name, former_bytes, in_ring=was_in_ring)
        if not has_room:
            return Refusal.FULL
        try:
            put = self._store.replace if has_one else self._store.put_encoded
            put(name, encoded, about, expires_at=expiry_of(ttl_s))
        except CacheFull:
            return Refusal.FULL
        if has_one:
            self._forget(name)
        self._charge(tenant, name, num_bytes, in_ring=in_ring)
        if is_fetched:
            self._fetched.add(name)
        return None

    def _find(self, name: str) -> Handle | None:
        """Return the place of a record; drop it if it has expired."""
        handle = self._store.find(name)
        if (
            handle is None
            or not (expires_at := self._store.ring.records.expires_at(handle))
            or not has_expired(expires_at)
        ):
            return handle
        self._store.discard(name)
        self._forget(name)
        self.num_expired += 1
        return None

    @property
    def _item_books(self) -> TenantBooks:
        return self._tenant_to_books.get(ITEMS_TENANT) or TenantBooks()

    def _charge(self, tenant: str, name: str, num_bytes: int, *, in_ring: bool = True) -> None:
        if (books := self._tenant_to_books.get(tenant)) is None:
            books = self._tenant_to_books[tenant] = TenantBooks()
        books.add(name, num_bytes)
        self._key_to_tenant[name] = tenant
        if self._share_bytes is not None and tenant != ITEMS_TENANT and in_ring:
            self._clients_books.add(name, num_bytes)

    def _discharge(self, tenant: str, name: str) -> int:
        if self._clients_books.has(name):
            self._clients_books.remove(name)
        return self._tenant_to_books[tenant].remove(name)

    def _make_room_in_quota(self, tenant: str, limit: int) -> None:
        quota = self._quota_bytes or 0
        while (books := self._tenant_to_books.get(tenant)) and books.num_bytes > limit:
            oldest = books.first_to_go(quota, quota - limit)
            self._store.discard(oldest)
            self._forget(oldest)
            self.num_quota_evictions += 1

    def _make_room(self, books: TenantBooks, share: int | None, num_bytes: int) -> bool:
        """Evict records of a share for one more of them.

        Returns:
            False, with no record evicted, if it is too large, or too many of them are leased or pinned.
        """
        ring = self._store.ring
        if share is None or isinstance(ring, NoRing):
            return True
        going, too_much = [], books.num_bytes + num_bytes - share
        for name, record_bytes in books.in_order(share, num_bytes) if too_much > 0 else ():
            handle = self._store.find(name)
            if handle is not None and not ring.records.is_kept(handle):  # dropping a leased record frees no space
                going.append(name)
                too_much -= record_bytes
            if too_much <= 0:
                break
        if too_much > 0:
            return False
        for name in going:
            self._store.discard(name)
            self.num_share_evictions += self._key_to_tenant[name] != ITEMS_TENANT
            self._evicted(name)
        return True

    def _touch(self, name: str) -> None:
        tenant = self._key_to_tenant[name]
        self._tenant_to_books[tenant].touch(name)
        if self._clients_books.has(name):
            self._clients_books.touch(name)

    def _evicted(self, name: str) -> None:
        self.num_item_evictions += self._key_to_tenant[name] == ITEMS_TENANT
        self._forget(name)

    def _forget(self, name: str) -> None:
        self._fetched.discard(name)
        tenant = self._key_to_tenant.pop(name)
        self._discharge(tenant, name)
        if not self._tenant_to_books[tenant].num_bytes:
            del self._tenant_to_books[tenant]


def _is_about(known: About, name: str, in_ring: bool) -> bool:
    """Return whether a record's metadata may be true of its key; in a nursery a client has written it."""
    return in_ring or (known.tenant != ITEMS_TENANT and store_key(known.tenant, known.key) == name)


def _is_of_probe(known: About, about: bytes) -> bool:
    return known.tenant == ITEMS_TENANT and not num_embeds_of(about)


class _NoStore:
    """Stands in until there is a ring: no key has a record."""

    ring = NoRing()

    def find(self, key: str) -> None:
        return None

    def discard(self, key: str) -> None:
        pass

    def discard_expired(self, limit: int) -> list[str]:
        return []

    def clear(self) -> None:
        pass

    def __len__(self) -> int:
        return 0

    def close(self) -> None:
        pass
