"""Leases of the engine on the store records that its open requests need, and on those a step in flight reads.

Two kinds of records: processed items, for which the frontend sends the token, and encoder outputs, looked up by key. A
lease is returned when no reference to its hit is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mmcached.cache.store_keys import output_key
from mmcached.client import Client, Hit
from mmcached.wire.closeable import Closeable
from mmcached.wire.messages.engine import AddRequest
from mmcached.wire.messages.parts import Inline, StoredItem

CONTACT_S = 1.0
"""Longest wait of the loop for the frontend, which has just sent a request; hits need no message."""


def contact(run_dir: Path) -> Client:
    return Client(run_dir, timeout_s=CONTACT_S, connect_timeout_s=CONTACT_S, name="engine")


class HeldRecords(Closeable):
    """Leases of one engine's open requests. Connects to the store at the first use."""

    def __init__(self, make_client: Callable[[], Client]) -> None:
        self._make_client = make_client
        self._client: Client | None = None
        self._outputs: dict[int, dict[int, Hit]] = {}
        self._items: dict[int, list[Hit]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._outputs.values())) + sum(map(len, self._items.values()))

    def lease_records(self, message: AddRequest, fingerprint: str) -> bool:
        """Take the leases that a request needs; return whether all were available.

        Stops at the first that is not: a record that cannot be leased would be copied, and may be large.
        """
        return self.lease_items(message.request_id, (feature.payload for feature in message.features)) and (
            self._lease_outputs(message, fingerprint)
        )

    def lease_items(self, request_id: int, payloads: Iterable[StoredItem | Inline | None]) -> bool:
        for token in dict.fromkeys(each.token for each in payloads if isinstance(each, StoredItem)):
            hit = self._contact().open(token, view=True, tensors="bytes", counts=False)
            if hit is None or hit.token is None:
                return False
            self._items.setdefault(request_id, []).append(hit)
        return True

    def tokens(self, request_id: int) -> dict[int, str]:
        """Return the lease tokens of a request's encoder outputs, by item index."""
        hits = self._outputs.get(request_id, {})
        return {index: token for index, hit in hits.items() if (token := hit.token) is not None}

    def hits_of(self, request_ids: Sequence[int]) -> list[Hit]:
        """Return the hits of these requests; their leases last as long as the caller keeps them."""
        kept = []
        for request_id in dict.fromkeys(request_ids):
            kept += [*self._outputs.get(request_id, {}).values(), *self._items.get(request_id, ())]
        return kept

    def drop(self, fingerprint: str, mm_hash: str, tenant: str) -> None:
        if self._client is not None:
            self._client.drop(output_key(fingerprint, mm_hash), tenant=tenant, local=True)

    def release_request(self, request_id: int) -> None:
        self._outputs.pop(request_id, None)
        self._items.pop(request_id, None)

    def forget_outputs(self) -> None:
        """Drop the leases on all encoder outputs that no step in flight reads; processed items stay valid."""
        self._outputs.clear()

    def close(self) -> None:
        self._outputs.clear()
        self._items.clear()
        if self._client is not None:
            self._client.close()

    def _lease_outputs(self, message: AddRequest, fingerprint: str) -> bool:
        for index, feature in enumerate(message.features):
            if not feature.has_output:
                continue
            key = output_key(fingerprint, feature.mm_hash)
            # It was in the store a moment ago; the loop must not wait for another host.
            hit = self._contact().get(key, view=True, tensors="bytes", tenant=message.tenant, local=True)
            if hit is None or hit.token is None:  # without a token it is a copy: too much is leased already
                return False
            self._outputs.setdefault(message.request_id, {})[index] = hit
        return True

    def _contact(self) -> Client:
        if self._client is None:
            self._client = self._make_client()
        return self._client
