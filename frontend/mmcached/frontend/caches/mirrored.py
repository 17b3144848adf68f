"""Mirrors what the engine keeps (mode `lru`): sizes and numbers of embeddings, no item.

The mirror says what need not be sent, and is right without ever asking.

    P0                                                             P1
    resolve(keys)   the items that may go as None; moves nothing
    send            not accepted: nothing has moved
    sent(items)     the mirror moves           -- message -->      FrameCache.ingest(seq, items) makes the same move

The three steps are one uninterrupted stretch of one thread. Messages that move the mirror carry `next_mirror_seq`, and
arrive in this order or not at all. When a number does not follow the last one, the engine clears first. So clearing the
mirror here leaves out a number, and the ends meet again at the next message, whatever became of the others:

    sender    … 4  5  6 │ clear, skip 7 │ 8  9
    receiver  … 4  5  6                 │ clear, 8  9

Lost messages show as a gap in the same way: the engine clears, and the first None that misses tells the frontend
(`missed`), which then clears too. What is rolled back when a request is refused, aborted or late is leases, never the
mirror: the message was sent, and will move the engine's cache.

Invariant: when all that was sent has arrived, `contents()` of both ends are equal. The move itself, and what it does
with oversized, repeated and crowding items, is in `mmcached.cache.request_lru`, for both ends.

Source: vLLM's `MultiModalProcessorSenderCache`; there the mirror moves before sending, and a refused request leaves it
ahead for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.frontend.caches.item_cache import ItemCache, OutgoingItem

if TYPE_CHECKING:
    from mmcached.frontend.processing.processor import Processed


class MirroredItemCache(ItemCache):
    """Key -> size and number of embeddings of an item that the engine holds; `lru` has the engine's capacity."""

    counts_hits = True

    def __init__(self, lru: RequestLRU[int]) -> None:
        super().__init__()
        self._lru = lru
        self._next_mirror_seq = 1
        self._num_desyncs = 0

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in dict.fromkeys(keys) if key not in self._lru]

    def resolve(self, keys: Sequence[str], given: Mapping[str, Processed]) -> list[OutgoingItem]:
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
        # The engine's cache moves by every item that the message names, also by one that comes again.
        self._lru.move(keys, [Entry(item.nbytes, item.num_embeds) for item in items])
        self._next_mirror_seq += 1

    def missed(self, mm_hashes: Sequence[str]) -> None:
        """Start both ends anew: they have drifted, so nothing of the mirror can be trusted."""
        if mm_hashes:
            self._num_desyncs += len(mm_hashes)
            self.clear()

    def engine_changed(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget every item; the number left out has the engine forget them too."""
        self._lru.clear()
        self._next_mirror_seq += 1

    @property
    def next_mirror_seq(self) -> int:
        return self._next_mirror_seq

    @property
    def num_desyncs(self) -> int:
        """Items that the mirror promised and the engine did not have. Stays 0 unless a message is lost."""
        return self._num_desyncs

    def contents(self) -> list[tuple[str, int]]:
        """Return `(key, bytes)` of all entries, the oldest first."""
        return self._lru.contents()
