"""Sizes of all records by tenant, and which records are evicted beyond a quota or a share.

A tenant over its quota loses its own records. Where the ring holds records of clients and processed items, each kind
has a share: all clients' records together stay within theirs, and items within theirs, both in the order of
`tenant_books`. Processed items are the records of `ITEMS_TENANT`, without a quota.

Bookkeeping only: the caller drops the records. Invariant: a record in a nursery is in its tenant's books, but in no
share.
"""

from __future__ import annotations

from collections.abc import Callable

from mmcached.cache.store_keys import ITEMS_TENANT, NAMES_TENANT
from mmcached.frontend.store.saved_seconds import SavedSeconds
from mmcached.frontend.store.tenant_books import TenantBooks


class RecordBooks:
    """The books of one store; records by the names that `store_key` gives.

    Args:
        quota_bytes: Maximum bytes of one tenant's chunks together; None for no limit.
        share_bytes: Maximum bytes of all clients' chunks together in the ring; None: the whole ring.
        item_share_bytes: The same for processed items.
    """

    def __init__(
        self, *, quota_bytes: int | None = None, share_bytes: int | None = None, item_share_bytes: int | None = None
    ) -> None:
        self.quota_bytes = quota_bytes
        self.share_bytes = share_bytes
        self.item_share_bytes = item_share_bytes
        self.clients = TenantBooks()
        """All clients' records in the ring, if they have a share."""
        self.by_tenant: dict[str, TenantBooks] = {}
        self.saved = SavedSeconds()
        self._name_to_tenant: dict[str, str] = {}

    @property
    def items(self) -> TenantBooks:
        return self.by_tenant.get(ITEMS_TENANT) or TenantBooks()

    @property
    def num_client_bytes(self) -> int:
        """Bytes of all clients' records, those in nurseries too."""
        return sum(books.num_bytes for tenant, books in self.by_tenant.items() if tenant != ITEMS_TENANT)

    def tenant_of(self, name: str) -> str:
        return self._name_to_tenant[name]

    def bytes_of(self, name: str) -> int:
        return self.by_tenant[self._name_to_tenant[name]].bytes_of(name)

    def quota_of(self, tenant: str) -> int | None:
        """Return the quota of a tenant in bytes; None: no limit, as for warmed records, which are of many."""
        return None if tenant == NAMES_TENANT else self.quota_bytes

    def charge(self, tenant: str, name: str, num_bytes: int, *, in_ring: bool = True) -> None:
        """Add a record."""
        if (books := self.by_tenant.get(tenant)) is None:
            books = self.by_tenant[tenant] = TenantBooks()
        books.add(name, num_bytes)
        self._name_to_tenant[name] = tenant
        if tenant != ITEMS_TENANT and in_ring:
            self.charge_share(name, num_bytes)

    def charge_share(self, name: str, num_bytes: int) -> None:
        """Add a record that moves from a nursery into the ring to the clients' share."""
        if self.share_bytes is not None:
            self.clients.add(name, num_bytes)

    def discharge(self, tenant: str, name: str) -> int:
        """Take a record out for a while; return its bytes."""
        if self.clients.has(name):
            self.clients.remove(name)
        num_bytes = self.by_tenant[tenant].remove(name)
        if not self.by_tenant[tenant].num_bytes:
            del self.by_tenant[tenant]
        return num_bytes

    def forget(self, name: str) -> str:
        """Remove a record that was dropped; return its tenant."""
        tenant = self._name_to_tenant.pop(name)
        self.saved.forget(name)
        self.discharge(tenant, name)
        return tenant

    def touch(self, name: str) -> None:
        """Mark a record as used."""
        self.by_tenant[self._name_to_tenant[name]].touch(name)
        if self.clients.has(name):
            self.clients.touch(name)

    def count_saved(self, name: str) -> None:
        """Count the seconds that a hit of a record saves."""
        self.saved.hit(name, self._name_to_tenant[name])

    def clear(self) -> None:
        self.by_tenant.clear()
        self.clients = TenantBooks()
        self._name_to_tenant.clear()
        self.saved.clear()

    # ---- what is evicted

    def first_over_quota(self, tenant: str, num_bytes: int) -> str | None:
        """Return the record that a tenant loses first for `num_bytes` more; None if they are within its quota."""
        quota, books = self.quota_of(tenant), self.by_tenant.get(tenant)
        if quota is None or books is None or books.num_bytes + num_bytes <= quota:
            return None
        return books.first_to_go(quota, num_bytes)

    def fits_share(self, num_bytes: int) -> bool:
        """Return whether the clients' share has free space."""
        return self.share_bytes is None or self.clients.num_bytes + num_bytes <= self.share_bytes

    def to_evict(self, num_bytes: int, is_kept: Callable[[str], bool], *, for_item: bool) -> list[str] | None:
        """Return the records to evict from a share for one more record.

        Args:
            is_kept: Returns whether a record is leased or pinned: dropping it frees no space.
            for_item: Whether the record is a processed item; else it is a client's.

        Returns:
            None if the record is too large, or too many of the others are kept.
        """
        books, share = (self.items, self.item_share_bytes) if for_item else (self.clients, self.share_bytes)
        if share is None:
            return []
        going, too_much = [], books.num_bytes + num_bytes - share
        for name, record_bytes in books.in_order(share, num_bytes) if too_much > 0 else ():
            if not is_kept(name):
                going.append(name)
                too_much -= record_bytes
            if too_much <= 0:
                break
        return None if too_much > 0 else going
