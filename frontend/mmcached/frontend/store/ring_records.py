"""Keeps records in the ring by name, with their sizes in the books.

Each record that the ring or a caller drops is removed from the books, so both list the same records. A record in a
nursery can be overwritten by its client at any time; it is dropped when that is found.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from mmcached.cache.store_keys import ITEMS_TENANT, About, num_embeds_of, parse_about, store_key
from mmcached.frontend.connections.rings import NoRing
from mmcached.frontend.store.pin_table import PinTable
from mmcached.frontend.store.record_books import RecordBooks
from mmcached.frontend.store.worth import Worth
from mmcached.shm import ObjectStoreWriter, RingWriter
from mmcached.shm.ring.chunks import RingClaim
from mmcached.shm.ring.slot_table import has_expired
from mmcached.shm.store import codec
from mmcached.shm.store.record_head import Head, head_of
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import LocalProtocolError, RemoteProtocolError, StaleHandle
from mmcached.wire.handle import Handle

EXPIRED_AT_ONCE = 256
"""Maximum number of expired records dropped in one turn: 4 ms."""


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection while many lasting objects are made: repeated collections take a third longer."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class NoObjects:
    """Stands in for the records of a ring until there is one: no key has a record."""

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


class RingRecords(Closeable):
    """The records of one ring; before `adopt` there is none. `close` closes the ring.

    Args:
        is_shared: Whether records of other hosts are put too.
        nursery_bytes: Maximum bytes of records in nurseries together, in addition to the ring.

    Attributes:
        objects: The records by name, as of `store_key`.
        books: Sizes of the records by tenant.
        fetched: Names of records that other hosts may have computed.
        pins: The records that clients have pinned.
    """

    def __init__(self, books: RecordBooks, *, is_shared: bool = False, nursery_bytes: int = 0) -> None:
        self.objects: ObjectStoreWriter | NoObjects = NoObjects()
        self.books = books
        self._worth = Worth()
        self.fetched: set[str] = set()
        self.pins = PinTable()
        self._is_shared = is_shared
        self._nursery_bytes = nursery_bytes
        self.num_quota_evictions = self.num_share_evictions = self.num_item_evictions = self.num_expired = 0

    def adopt(self, ring: RingWriter) -> None:
        """Keep records in this ring from now on, and own it, with the records of a former frontend.

        Raises:
            LocalProtocolError: There is a ring.
        """
        if isinstance(self.objects, ObjectStoreWriter):
            raise LocalProtocolError("this store has a ring")
        self.objects = ObjectStoreWriter(
            ring, on_evict=self._evicted, on_hit=self._hit, nursery_bytes=self._nursery_bytes
        )
        for name, (num_bytes, about) in self.objects.adopted.items():
            known = parse_about(about)
            in_ring = not self.lies_in_nursery(name)
            if known is None or not is_about(known, name, in_ring) or _is_of_probe(known, about):
                self.objects.discard(name)
            else:
                self.books.charge(known.tenant, name, num_bytes, in_ring=in_ring)
                if known.cost_s and (handle := self.objects.find(name)) is not None:
                    self.learn(name, known.tenant, known.key, known.cost_s, handle)
                if self._is_shared and known.tenant != ITEMS_TENANT:
                    self.fetched.add(name)
        self.objects.adopted.clear()
        for tenant in self.books.by_tenant.keys() - {ITEMS_TENANT}:
            self.make_room_in_quota(tenant, 0)
        self.make_room(0)

    def __len__(self) -> int:
        return len(self.objects)

    @property
    def ring(self) -> RingWriter | NoRing:
        return self.objects.ring

    def find(self, name: str) -> Handle | None:
        """Return the handle of a record; drop it if it has expired."""
        handle = self.objects.find(name)
        if (
            handle is None
            or not (expires_at := self.objects.ring.records.expires_at(handle))
            or not has_expired(expires_at)
        ):
            return handle
        self.discard(name)
        self.num_expired += 1
        return None

    def expires_at(self, handle: Handle) -> int:
        """Return the expiry of a current record, as in `slot_table`; 0: never."""
        return self.ring.records.expires_at(handle)

    def head(self, handle: Handle) -> Head | None:
        """Return the head of a record; None if its client has overwritten it, and then drop the record."""
        ring = self.objects.ring
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
        return codec.adopt(self.objects.ring.records.read(handle)).frames()

    # ---- space

    def make_room_in_quota(self, tenant: str, num_bytes: int) -> None:
        """Evict a tenant's records until `num_bytes` more are within its quota, beside which its pinned records fit."""
        while (oldest := self.books.first_over_quota(tenant, num_bytes)) is not None:
            if oldest in self.pins:
                self.books.touch(oldest)  # it goes last: no later call passes it again
                continue
            self.discard(oldest)
            self.num_quota_evictions += 1

    def make_room(self, num_bytes: int, *, for_item: bool = False) -> bool:
        """Evict records of a share for one more of them; return False, with none evicted, if that is not enough."""
        ring = self.objects.ring
        if isinstance(ring, NoRing):
            return True

        def is_kept(name: str) -> bool:
            handle = self.objects.find(name)
            return handle is None or ring.records.is_kept(handle)

        going = self.books.to_evict(num_bytes, is_kept, for_item=for_item)
        for name in going or ():
            self.objects.discard(name)
            self.num_share_evictions += self.books.tenant_of(name) != ITEMS_TENANT
            self._evicted(name)
        return going is not None

    def pin(self, name: str, tenant: str, deadline: float) -> None:
        """Protect a tenant's record from eviction until `deadline`, and mark it as used; ignores unknown names."""
        handle = self.objects.find(name)
        if handle is None or isinstance(self.objects, NoObjects):
            return
        if self.pins.add(name, tenant, self.books.bytes_of(name), deadline):
            self.objects.ring.records.pin(handle)
        self.objects.ring.records.touch(handle)
        self.books.touch(name)

    def unpin(self, name: str) -> bool:
        """End a record's pin; return whether there was one."""
        was_pinned = self.pins.remove(name)
        if (
            was_pinned
            and isinstance(self.objects, ObjectStoreWriter)
            and (handle := self.objects.find(name)) is not None
        ):
            self.objects.ring.records.unpin(handle)
        return was_pinned

    # ---- drops

    def evict(self, handle: Handle) -> bool:
        """Evict a record of a nursery; return False if it is leased or pinned."""
        return isinstance(self.objects, ObjectStoreWriter) and self.objects.ring.records.evict(handle)

    def end_copy(self, handle: Handle, claim: RingClaim, *, is_proven: bool) -> bool:
        """Publish a copy in place of the record in a nursery; return whether that record was still there.

        Args:
            is_proven: As for `RingWriter.commit`.
        """
        if isinstance(self.objects, NoObjects):
            return False
        name = self.objects.key_of(handle) if self.objects.ring.records.is_current(handle) else ""
        copy = self.objects.end_copy(handle, claim, is_proven=is_proven)
        if copy is not None and name in self.pins:
            self.objects.ring.records.pin(copy)
        if copy is not None and (cost_s := self.books.saved.cost_s(name)):
            self.objects.ring.records.value(copy, self._worth.of(cost_s, copy.nbytes))
        return copy is not None

    def drop_spoiled(self, handle: Handle) -> None:
        """Drop a record that its client has overwritten in its nursery; a missing one changes nothing."""
        if isinstance(self.objects, ObjectStoreWriter) and self.objects.ring.records.is_current(handle):
            name = self.objects.key_of(handle)
            self.discard(name)

    def learn(self, name: str, tenant: str, key: str, cost_s: float, handle: Handle) -> None:
        """Remember the cost of a new record, by which hits are summed and records are evicted.

        Processed items are evicted without regard to their costs: a hit of their encoder outputs replaces theirs.
        """
        self.books.saved.learn(name, tenant, key, cost_s)
        if tenant == ITEMS_TENANT:
            return
        if (worth := self._worth.count_put(cost_s, handle.nbytes)) and isinstance(self.objects, ObjectStoreWriter):
            self.objects.ring.records.value(handle, worth)

    def _hit(self, name: str) -> None:
        self.books.touch(name)
        self.books.count_saved(name)

    def lies_in_nursery(self, name: str) -> bool:
        handle = self.objects.find(name)
        return handle is not None and handle.nursery > 0

    def drop_expired(self) -> None:
        """Drop up to `EXPIRED_AT_ONCE` expired records to free their space; no lookup finds them any more."""
        for name in self.objects.discard_expired(EXPIRED_AT_ONCE):
            self.forget(name)
            self.num_expired += 1

    def drop_fetched(self) -> None:
        """Drop the records that other hosts may have computed."""
        for name in list(self.fetched):
            self.discard(name)

    def clear(self) -> None:
        """Drop all records."""
        self.objects.clear()
        self.books.clear()
        self.fetched.clear()
        self.pins.clear()

    def close(self) -> None:
        self.objects.close()
        self.books.clear()

    def _evicted(self, name: str) -> None:
        self.num_item_evictions += self.forget(name) == ITEMS_TENANT

    def discard(self, name: str) -> None:
        """Drop a record by its name."""
        self.objects.discard(name)
        self.forget(name)

    def forget(self, name: str) -> str:
        """Remove a dropped record from the books; return its tenant."""
        self.fetched.discard(name)
        self.pins.remove(name)
        return self.books.forget(name)


def is_about(known: About, name: str, in_ring: bool) -> bool:
    """Return whether a record's metadata may be true of its key; in a nursery a client has written it."""
    return in_ring or (known.tenant != ITEMS_TENANT and store_key(known.tenant, known.key) == name)


def _is_of_probe(known: About, about: bytes) -> bool:
    return known.tenant == ITEMS_TENANT and not num_embeds_of(about)
