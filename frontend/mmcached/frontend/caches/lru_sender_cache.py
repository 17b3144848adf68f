"""P0's processor cache in `lru` mode: a mirror of the engine's receiver cache that keeps nothing but sizes and prompt
updates. It says what need not be sent, and is right without ever asking.

    P0                                                     P1
    plan(keys)      which items may go as None; pure
    send            not accepted: nothing has moved
    apply(items)    the mirror moves      -- message -->   ingest(seq, items)    the receiver makes the same move

The three steps are one uninterrupted stretch of one thread. Messages that move the mirror carry `next_mirror_seq`, and
arrive in this order or not at all. When a number does not follow the last one, the receiver clears first. So whoever
clears the mirror here leaves out a number, and the ends meet again at the next message, whatever became of the others:

    sender    … 4  5  6 │ clear, skip 7 │ 8  9
    receiver  … 4  5  6                 │ clear, 8  9

Lost messages show as a gap in the same way: the receiver clears, and the first None that misses tells the sender
(`note_misses`), which then clears too. What is rolled back when a request is refused, aborted or late is leases, never
the mirror: the message was sent, and will move the receiver.

Invariant: when all that was sent has arrived, `contents()` of both ends are equal. The move itself, and what it does
with oversized, repeated and crowding items, is in `mmcached.cache.request_lru`, for both ends.

The library face (`get_and_update`) plans, hands out and moves at once: handing out counts as sending.

Source: vLLM's `MultiModalProcessorSenderCache`; there the mirror moves before sending, and a refused request leaves it
ahead for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmcached.cache import (
    Entry,
    MultiModalKwargsItem,
    ResolvedPromptUpdate,
    SenderInput,
    SenderOutput,
)
from mmcached.frontend.caches.lru_processor_cache import LruProcessorCache
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss

PromptUpdates = tuple[ResolvedPromptUpdate, ...]


@dataclass(frozen=True, slots=True)
class MirroredItem:
    """One item of a request as the mirror knows it, whether its data travel or not.

    Attributes:
        nbytes: of the encoded item; the size that travels with it, since both ends count with it.
    """

    mm_hash: str
    nbytes: int
    prompt_updates: PromptUpdates


class MultiModalProcessorSenderCache(LruProcessorCache[PromptUpdates]):
    """Key -> size and prompt updates of an item that the engine holds.

    One instance is used through one face: sizes are those that travel in the service, those of
    `MultiModalCache.get_item_size` in the library. `invalidate` forgets one key and trusts the rest of the mirror, as
    callers of the library expect; the service calls `note_misses`, for a miss means that nothing can be trusted.
    """

    def __init__(self, config: ServiceConfig) -> None:
        super().__init__(config)
        self._next_mirror_seq = 1
        self._num_desyncs = 0

    # ---- the service's face: plan, send, apply

    def plan(self, keys: Sequence[str]) -> list[bool]:
        """Return for each key of a request whether it may be sent as None; changes nothing.

        That is when the engine holds it, or when it comes again: then the first goes with its data, whatever its size.
        """
        return self._lru.plan(keys)

    def metadata(self, mm_hash: str) -> MirroredItem:
        """Return what is known of an item that the engine holds; changes nothing.

        Raises:
            CacheMiss: the mirror does not have it.
        """
        entry = self._lru.find(mm_hash)
        if entry is None:
            raise CacheMiss([mm_hash])
        return MirroredItem(mm_hash, entry.nbytes, entry.value)

    @property
    def next_mirror_seq(self) -> int:
        """The number that the next message has to carry."""
        return self._next_mirror_seq

    def apply(self, items: Sequence[MirroredItem]) -> None:
        """Move the mirror: a message numbered `next_mirror_seq` with these items was accepted for sending.

        Args:
            items: all of the request, in prompt order, sent with data or as None.
        """
        is_hit = self._lru.plan([item.mm_hash for item in items])
        entries = [Entry(item.nbytes, item.prompt_updates) for item in items]
        found = self._lru.move([item.mm_hash for item in items], entries)
        new = [None if hit else entry for hit, entry in zip(is_hit, entries, strict=True)]
        self._count(found, new)
        self._next_mirror_seq += 1

    def note_misses(self, mm_hashes: Sequence[str]) -> int:
        """The engine did not hold what was sent as None: the ends have drifted, so start them both anew.

        Returns:
            how many keys that were; `num_desyncs` counts them. Only what the mirror promised goes as None.
        """
        if mm_hashes:
            self._num_desyncs += len(mm_hashes)
            self._forget_all()
        return len(mm_hashes)

    @property
    def num_desyncs(self) -> int:
        """Items that the mirror promised and the engine did not have. Stays 0 unless a message is lost."""
        return self._num_desyncs

    def clear_cache(self) -> None:
        """Forget every entry, and start `make_stats` anew. With its next message the receiver does so too.

        Also what to do when there is a new engine, which holds nothing.
        """
        self._forget_all()
        self._counter.clear()

    # ---- the library's face

    def get_and_update_item(
        self, mm_item: SenderInput, mm_hash: str
    ) -> tuple[MultiModalKwargsItem | None, Sequence[ResolvedPromptUpdate]]:
        """Return the item, or None if the receiver holds it; and its prompt updates.

        Raises:
            CacheMiss: neither cached nor given; nothing has changed.
        """
        value, new_item = self._take_one(mm_item, mm_hash)
        return new_item, value

    def get_and_update(self, mm_items: Sequence[SenderInput], mm_hashes: Sequence[str]) -> list[SenderOutput]:
        if len(mm_items) == len(mm_hashes) == 1:
            return [self.get_and_update_item(mm_items[0], mm_hashes[0])]
        return [(taken.new_item, taken.value) for taken in self._take(mm_items, mm_hashes)]

    def _value_of(self, item: MultiModalKwargsItem, prompt_updates: Sequence[ResolvedPromptUpdate]) -> PromptUpdates:
        return tuple(prompt_updates)

    def _forget_all(self) -> None:
        """Empty the mirror; the number left out will tell the receiver."""
        self._lru.clear()
        self._next_mirror_seq += 1
