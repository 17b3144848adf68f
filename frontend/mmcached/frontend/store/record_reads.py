"""Looks records up for clients, and counts the hits and misses of each client."""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.frontend.connections.entry_owners import EntryOwners
from mmcached.frontend.store.client_figures import ClientFigures
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.second_level import SecondLevelConnection
from mmcached.wire.handle import Handle
from mmcached.wire.messages.frontend import ClaimRecord, ClaimRecords, GetRecords


class RecordReads:
    """The counted lookups of one store."""

    def __init__(
        self,
        records: RecordStore,
        readers: EntryOwners[str],
        second_level: SecondLevelConnection,
        client_figures: ClientFigures,
    ) -> None:
        self._records = records
        self._readers = readers
        self._second_level = second_level
        self._client_figures = client_figures

    def get(self, message: GetRecords | ClaimRecord, keys: Sequence[str]) -> list[Handle | None]:
        """Return the places of keys' records, counting each as a hit or a miss."""
        found = [self._records.get(message.tenant, key) for key in keys]
        num_misses = found.count(None)
        self._client_figures.asked(message.client_id, len(found) - num_misses, num_misses)
        return found

    def get_present(self, message: ClaimRecords) -> list[Handle | None]:
        """Return the places of keys' records, counting only hits: which of the others are misses comes later."""
        records, tenant = self._records, message.tenant
        found = [records.get(tenant, key) if records.has(tenant, key) else None for key in message.keys]
        self._client_figures.asked(message.client_id, len(found) - found.count(None), 0)
        return found

    def count_misses(self, message: ClaimRecords, num_misses: int) -> None:
        """Count misses of `get_present`."""
        self._records.count_misses(num_misses)
        self._client_figures.asked(message.client_id, 0, num_misses)

    def find(self, message: ClaimRecord, keys: Sequence[str]) -> list[Handle | None]:
        """Return the places of keys' records, counted as by `get` unless the client has just looked into the ring.

        With a second level they are always counted here, because a miss may become a hit.
        """
        if self._second_level.is_on or not self._readers.has(message.client_id, message.incarnation):
            return self.get(message, keys)
        return [self._records.find(message.tenant, key) for key in keys]
