"""Keeps the items of open requests pinned in the store, so that nothing evicts one before its engine has a lease of it.

    sent ──> pinned, as long as the request is with that engine ──> leave: it has ended, or is sent anew

What one engine's requests have pinned is bounded; items beyond that travel as frames. Requests by number, engines by
incarnation.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.frontend.caches.item_cache import ItemCache, OutgoingItem
from mmcached.wire.handle import Handle


class ItemPins:
    """The pins of all open requests.

    Args:
        quota_bytes: what the requests of one engine may have pinned; None for no limit.
    Attributes:
        num_beyond_quota: items that travelled as frames because of it.
    """

    def __init__(self, items: ItemCache, quota_bytes: int | None) -> None:
        self._items = items
        self._quota_bytes = quota_bytes
        self._number_to_items: dict[int, tuple[int, Sequence[OutgoingItem]]] = {}
        self.num_beyond_quota = 0

    def bounded(self, engine: int, items: Sequence[OutgoingItem]) -> list[OutgoingItem]:
        """Return the items of a request, those as frames that an engine has no room for."""
        if self._quota_bytes is None:
            return list(items)
        pinned = {item.mm_hash: item.nbytes for item in self._pinned_for(engine)}
        sent = []
        for item in items:
            if isinstance(item.payload, Handle) and item.mm_hash not in pinned:
                if sum(pinned.values()) + item.nbytes > self._quota_bytes:
                    self.num_beyond_quota += 1
                    sent += self._items.inline([item])
                    continue
                pinned[item.mm_hash] = item.nbytes
            sent.append(item)
        return sent

    def sent(self, number: int, engine: int, items: Sequence[OutgoingItem]) -> None:
        """Keep the items of a request that lie in the store pinned until it leaves."""
        if items:
            self._number_to_items[number] = engine, items

    def leave(self, number: int) -> None:
        """Unpin a request's items; an unknown one changes nothing."""
        _, items = self._number_to_items.pop(number, (0, ()))
        self._items.release(items)

    @property
    def num_bytes(self) -> int:
        """Bytes that are pinned, of each item once."""
        places = {item.payload: item.nbytes for _, items in self._number_to_items.values() for item in items}
        return sum(places.values())

    def numbers(self) -> set[int]:
        """Return the requests that have something pinned."""
        return set(self._number_to_items)

    def _pinned_for(self, engine: int) -> list[OutgoingItem]:
        return [item for each, items in self._number_to_items.values() if each == engine for item in items]
