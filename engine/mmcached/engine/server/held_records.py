"""Held records are what an engine's open requests need of the store: the engine has a lease on each.

    hold ──> the leases' tokens, for the plan ──> forget: the request has ended
        └──> missed: a record has gone, or the engine is not in contact with the store
    keep(step) ──> what a step in flight reads, whatever becomes of its requests

Two kinds: processed items, of which the frontend sends the token, and what encoders have said, which is looked up by
its key. A lease goes back when nothing refers to its hit any more. Knows nothing of steps and tensors.
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
"""How long the loop waits for the frontend, which has just sent a request; a hit asks it nothing."""


def contact(run_dir: Path) -> Client:
    """Return a client of the service; it comes back by itself after a restart of the frontend."""
    return Client(run_dir, timeout_s=CONTACT_S, connect_timeout_s=CONTACT_S, name="engine")


class HeldRecords(Closeable):
    """The leases of one engine's open requests. The store is contacted when one is first needed."""

    def __init__(self, make_client: Callable[[], Client]) -> None:
        self._make_client = make_client
        self._client: Client | None = None
        self._outputs: dict[int, dict[int, Hit]] = {}
        self._items: dict[int, list[Hit]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._outputs.values())) + sum(map(len, self._items.values()))

    def hold(self, message: AddRequest, fingerprint: str) -> bool:
        """Take the leases that a request needs; return whether they were all to be had.

        After one that was not, none is taken: a record that cannot be leased is copied, and may be large.
        """
        return self.hold_items(message.request_id, (feature.payload for feature in message.features)) and (
            self._hold_outputs(message, fingerprint)
        )

    def hold_items(self, request_id: int, payloads: Iterable[StoredItem | Inline | None]) -> bool:
        """Take a lease on each processed item that lies in the store; return whether they were all to be had."""
        for token in dict.fromkeys(each.token for each in payloads if isinstance(each, StoredItem)):
            hit = self._contact().open(token, view=True, tensors="bytes", counts=False)
            if hit is None or hit.token is None:
                return False
            self._items.setdefault(request_id, []).append(hit)
        return True

    def tokens(self, request_id: int) -> dict[int, str]:
        """Return the token of each encoder output's lease, by the index of its item."""
        hits = self._outputs.get(request_id, {})
        return {index: token for index, hit in hits.items() if (token := hit.token) is not None}

    def keep(self, request_ids: Sequence[int]) -> list[Hit]:
        """Return the hits of these requests, for as long as somebody reads under their leases."""
        kept = []
        for request_id in dict.fromkeys(request_ids):
            kept += [*self._outputs.get(request_id, {}).values(), *self._items.get(request_id, ())]
        return kept

    def drop(self, fingerprint: str, mm_hash: str, tenant: str) -> None:
        """Have an encoder output forgotten that is not what it should be."""
        if self._client is not None:
            self._client.drop(output_key(fingerprint, mm_hash), tenant=tenant)

    def forget(self, request_id: int) -> None:
        """Let go of what an ended request held; an unknown one changes nothing."""
        self._outputs.pop(request_id, None)
        self._items.pop(request_id, None)

    def forget_outputs(self) -> None:
        """Let go of all encoder outputs that no step in flight reads; processed items stay as good as they were."""
        self._outputs.clear()

    def close(self) -> None:
        self._outputs.clear()
        self._items.clear()
        if self._client is not None:
            self._client.close()

    def _hold_outputs(self, message: AddRequest, fingerprint: str) -> bool:
        for index, feature in enumerate(message.features):
            if not feature.has_output:
                continue
            key = output_key(fingerprint, feature.mm_hash)
            # It was there a moment ago; the loop waits for no other host.
            hit = self._contact().get(key, view=True, tensors="bytes", tenant=message.tenant, local=True)
            if hit is None or hit.token is None:  # too much is leased here already: it is a copy
                return False
            self._outputs.setdefault(message.request_id, {})[index] = hit
        return True

    def _contact(self) -> Client:
        if self._client is None:
            self._client = self._make_client()
        return self._client
