"""Mirror of the engine's item cache (mode `lru`): sizes and numbers of embeddings, no items.

The mirror tells which items need not be sent, without a message to the engine.

    P0                                                             P1
    resolve(keys)   items to send as None; changes nothing
    send            refused: nothing has changed
    sent(items)     the mirror changes         -- message -->      FrameCache.ingest(seq, items) changes alike

The three steps run in one thread without interruption. Messages that change the mirror carry `next_mirror_seq`, and
arrive in this order or not at all. If a number does not follow the previous one, the engine clears its cache first. So
clearing the mirror skips a number, and both ends agree again at the next message, even if messages before it were lost:

    sender    … 4  5  6 │ clear, skip 7 │ 8  9
    receiver  … 4  5  6                 │ clear, 8  9

A lost message leaves the same gap: the engine clears, and the first None that it does not find makes the frontend clear
too (`missed`). A request that is refused, aborted or late returns its leases; the mirror is not rolled back, because
the message was sent and changes the engine's cache.

Invariant: once all sent messages have arrived, `contents()` of both ends are equal. Both ends change by
`mmcached.cache.request_lru`.

Source: vLLM's `MultiModalProcessorSenderCache`; there the mirror changes before sending, so a refused request leaves it
wrong for good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.gateway.caches.item_cache import ItemCache, OutgoingItem
from mmcached.gateway.processing.processor import GatewayItem


class MirroredItemCache(ItemCache):
    """Size and number of embeddings, by key, of items that the engine holds; `lru` has the engine's capacity."""

    counts_hits = True

    def __init__(self, lru: RequestLRU[int]) -> None:
        super().__init__()
        self._lru = lru
        self._next_mirror_seq = 1
        self._num_desyncs = 0

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in dict.fromkeys(keys) if key not in self._lru]

    def resolve(self, keys: Sequence[str], given: Mapping[str, GatewayItem]) -> list[OutgoingItem]:
        fresh: dict[str, OutgoingItem] = {}
        items = []
        for key in keys:
            known = self._lru.find(key)
            if known is not None:
                items.append(OutgoingItem(key, known.nbytes, known.value, None))
            elif key in fresh:  # it goes with this very message
                items.append(OutgoingItem(key, fresh[key].nbytes, fresh[key].num_embeds, None))
            else:
                fresh[key] = OutgoingItem.inline(key, given[key])
                items.append(fresh[key])
        return items

    def sent(self, items: Sequence[OutgoingItem]) -> None:
        super().sent(items)
        keys = [item.mm_hash for item in items]
        sizes, new = {item.mm_hash: item.nbytes for item in items}, self.missing(keys)
        self._num_new += len(new)
        self._num_hits += len(sizes) - len(new)
        self._num_fallbacks += sum(sizes[key] > self._lru.capacity for key in new)
        # The engine's cache changes by every item that the message names, repeated items too.
        self._lru.move(keys, [Entry(item.nbytes, item.num_embeds) for item in items])
        self._next_mirror_seq += 1

    def missed(self, mm_hashes: Sequence[str]) -> None:
        """Clear both ends: they differ, so no entry of the mirror can be trusted."""
        if mm_hashes:
            self._num_desyncs += len(mm_hashes)
            self.clear()

    def engine_changed(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all items; the skipped number makes the engine drop them too."""
        self._lru.clear()
        self._next_mirror_seq += 1

    @property
    def next_mirror_seq(self) -> int:
        return self._next_mirror_seq

    @property
    def num_desyncs(self) -> int:
        """Items that the mirror listed and the engine did not have. Stays 0 unless a message is lost."""
        return self._num_desyncs

    def contents(self) -> list[tuple[str, int]]:
        """Return `(key, bytes)` of all entries, the oldest first."""
        return self._lru.contents()
