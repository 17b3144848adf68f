"""Keeps processed items for later requests, and says how each item of a request travels to its engine.

    ItemCache           off              nothing is kept, frames each time
    LocalItemCache      processor_only   kept here, frames each time
    MirroredItemCache   lru              kept in the engine; here only its mirror. Frames once, then nothing
    StoredItemCache     shm              kept in the store. Tokens; frames only for what does not fit

    missing --> (processing, as long as it takes) --> missing: nothing but what was processed
                                                         |
    resolve --> (send) --> sent        the engine's queue has the message: mirrors move now, and only now
       |           |        +--> (the request ends, or is sent anew) --> release
       |           +--> (refused) --> release
       +-- what lies in the store is pinned until `release`: the engine takes its own lease when the request comes

From the last `missing` to `sent` is one uninterrupted stretch of the frontend's one thread, so nothing can come between
what a cache says and the message that is built from it. An item that a request names twice counts once, and its bytes
travel once.

Knows nothing of sockets, engines or images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmcached.wire.handle import Handle
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import ProcessorCacheStats

if TYPE_CHECKING:
    from mmcached.frontend.processing.processor import Processed


@dataclass(frozen=True, slots=True)
class OutgoingItem:
    """One item of a request as it will travel.

    Attributes:
        nbytes: size of the encoded item, also if it does not travel now.
        num_embeds: embeddings that the encoder makes of it, one for each placeholder in the prompt.
        payload: the item's place in the store, the frames to send inline, or None: the engine has it.
        has_output: nothing was processed: the engine loads what an encoder has said of it.
    """

    mm_hash: str
    nbytes: int
    num_embeds: int
    payload: Handle | list[Frame] | None
    has_output: bool = False

    @classmethod
    def inline(cls, mm_hash: str, item: Processed) -> OutgoingItem:
        """Return an item that travels as frames."""
        return cls(mm_hash, item.encoded.nbytes, item.num_embeds, item.encoded.frames())


class ItemCache:
    """The off switch, and what every mode extends: items are processed for each request, and travel as frames.

    `keys` are those of a request's items, in prompt order.
    """

    counts_hits = False

    def __init__(self) -> None:
        self._num_hits = self._num_new = self._num_inline = self._num_fallbacks = 0

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys, each once, whose items have to be given to `resolve`; changes nothing."""
        return list(dict.fromkeys(keys))

    def resolve(self, keys: Sequence[str], given: Mapping[str, Processed]) -> list[OutgoingItem]:
        """Return how each item of a request would travel; those in the store are pinned until `release`.

        Args:
            given: what is `missing`, or more.
        """
        items = {key: OutgoingItem.inline(key, given[key]) for key in dict.fromkeys(keys)}
        return [items[key] for key in keys]

    def sent(self, items: Sequence[OutgoingItem]) -> None:
        """Take note that a message with these items has been accepted."""
        self._num_inline += len({item.mm_hash for item in items if isinstance(item.payload, list)})

    def loaded(self, num_items: int) -> None:
        """Take note of items of a request that nobody processed, because their output is in the store."""
        if self.counts_hits:
            self._num_hits += num_items

    def release(self, items: Sequence[OutgoingItem]) -> None:
        """Unpin what `resolve` has returned, once: its request has ended, or is not sent."""

    def inline(self, items: Sequence[OutgoingItem]) -> list[OutgoingItem]:
        """Return the same items, those in the store as frames; they are pinned."""
        return list(items)

    def keep(self, key: str, item: Processed) -> None:
        """Take an item that was processed, but that no request needs any more, if this side keeps items."""

    def missed(self, mm_hashes: Sequence[str]) -> None:
        """Count on the engine no longer for these items: it does not have them."""

    def engine_changed(self) -> None:
        """Take note that another engine process has come: it holds nothing."""

    def clear(self) -> None:
        """Forget every item."""

    @property
    def next_mirror_seq(self) -> int:
        """Number of the next message that moves the mirror; 0 without a mirror."""
        return 0

    @property
    def num_desyncs(self) -> int:
        """Items that the mirror promised and the engine did not have."""
        return 0

    def stats(self) -> ProcessorCacheStats:
        """Return the cache's figures; what was processed for it is counted elsewhere."""
        return ProcessorCacheStats(
            queries=self._num_hits + self._num_new,
            hits=self._num_hits,
            inline_items=self._num_inline,
            inline_fallbacks=self._num_fallbacks,
        )
