"""Stored outputs are what encoders have said, in the store: the engine holds a lease of each that a request will need.

    hold ──> the lease's token, for the plan ──> forget: the request has ended
        └──> missed: it has gone, or the engine is not in contact with the store
    keep(step) ──> what a step in flight reads, whatever becomes of its requests

A lease goes back when nothing refers to its hit any more. Knows nothing of steps and tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mmcached.cache.store_keys import output_key
from mmcached.client import Client, Hit
from mmcached.wire.closeable import Closeable
from mmcached.wire.messages.engine import AddRequest

CONTACT_S = 1.0
"""How long the loop waits for the frontend, which has just sent a request; a hit asks it nothing."""


def contact(run_dir: Path) -> Client:
    """Return a client of the service; it comes back by itself after a restart of the frontend."""
    return Client(run_dir, timeout_s=CONTACT_S, connect_timeout_s=CONTACT_S, name="engine")


class StoredOutputs(Closeable):
    """The leases of one engine's open requests. The store is contacted when one is first needed."""

    def __init__(self, make_client: Callable[[], Client]) -> None:
        self._make_client = make_client
        self._client: Client | None = None
        self._hits: dict[int, dict[int, Hit]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._hits.values()))

    def hold(self, message: AddRequest, fingerprint: str) -> bool:
        """Take the leases that a request needs; return whether they were all to be had. After one that was not, none is
        taken: a record that cannot be leased is copied, and may be large.
        """
        for index, feature in enumerate(message.features):
            if not feature.has_output:
                continue
            if self._client is None:
                self._client = self._make_client()
            key = output_key(fingerprint, feature.mm_hash)
            # It was there a moment ago; the loop waits for no other host.
            hit = self._client.get(key, view=True, tensors="bytes", tenant=message.tenant, local=True)
            if hit is None or hit.token is None:  # too much is leased here already: it is a copy
                return False
            self._hits.setdefault(message.request_id, {})[index] = hit
        return True

    def tokens(self, request_id: int) -> dict[int, str]:
        """Return the token of each item's lease, by its index."""
        hits = self._hits.get(request_id, {})
        return {index: token for index, hit in hits.items() if (token := hit.token) is not None}

    def keep(self, request_ids: Sequence[int]) -> list[Hit]:
        """Return the hits of these requests, for as long as somebody reads under their leases."""
        return [hit for request_id in request_ids for hit in self._hits.get(request_id, {}).values()]

    def drop(self, fingerprint: str, mm_hash: str, tenant: str) -> None:
        """Have a record forgotten that is not what it should be."""
        if self._client is not None:
            self._client.drop(output_key(fingerprint, mm_hash), tenant=tenant)

    def forget(self, request_id: int) -> None:
        """Let go of what an ended request held; an unknown one changes nothing."""
        self._hits.pop(request_id, None)

    def forget_all(self) -> None:
        """Let go of everything that no step in flight reads."""
        self._hits.clear()

    def close(self) -> None:
        self._hits.clear()
        if self._client is not None:
            self._client.close()
