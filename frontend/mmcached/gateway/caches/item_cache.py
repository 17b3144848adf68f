"""Processed items kept for later requests, and the form in which each item of a request travels to its engine.

    missing --> (processing, as long as it takes) --> missing: only the items just processed
                                                         |
    resolve --> (send) --> sent        the engine's queue has the message: only now do mirrors change
       |           |        +--> (the request ends, or is sent again) --> release
       |           +--> (refused) --> release
       +-- items in the store are pinned until `release`: the engine takes its own lease when the request arrives

The frontend's only thread runs from the last `missing` to `sent` without interruption, so the cache cannot change
between the decision and the message built from it. An item that a request names twice counts once and is sent once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmcached.gateway.processing.processor import GatewayItem
from mmcached.wire.handle import Handle
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import ProcessorCacheStats
from mmcached.wire.vocabulary import Modality


@dataclass(frozen=True, slots=True)
class OutgoingItem:
    """One item of a request in the form in which it is sent.

    Attributes:
        nbytes: Size of the encoded item, also if it is not sent now.
        num_embeds: Embeddings that the encoder makes of it: one per placeholder in the prompt.
        payload: The item's place in the store, the frames to send inline, or None: the engine has it.
        has_output: Whether the item was not processed because the engine loads its encoder output from the store.
    """

    mm_hash: str
    nbytes: int
    num_embeds: int
    payload: Handle | list[Frame] | None
    has_output: bool = False

    @classmethod
    def inline(cls, mm_hash: str, item: GatewayItem) -> OutgoingItem:
        return cls(mm_hash, item.encoded.nbytes, item.num_embeds, item.encoded.frames())


class ItemCache:
    """Mode `off`, and the base of every mode: items are processed for each request and sent as frames.

    `keys` are those of a request's items, in prompt order.
    """

    counts_hits = False

    def __init__(self) -> None:
        self._num_hits = self._num_new = self._num_inline = self._num_fallbacks = 0

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the distinct keys whose items must be given to `resolve`; changes nothing."""
        return list(dict.fromkeys(keys))

    def resolve(self, keys: Sequence[str], given: Mapping[str, GatewayItem]) -> list[OutgoingItem]:
        """Return the form of each item of a request; items in the store are pinned until `release`.

        Args:
            given: At least the items of `missing`.
        """
        items = {key: OutgoingItem.inline(key, given[key]) for key in dict.fromkeys(keys)}
        return [items[key] for key in keys]

    def sent(self, items: Sequence[OutgoingItem]) -> None:
        """Record that the engine's queue has accepted a message with these items."""
        self._num_inline += len({item.mm_hash for item in items if isinstance(item.payload, list)})

    def loaded(self, num_items: int) -> None:
        """Count items that were not processed, because their encoder output is in the store."""
        if self.counts_hits:
            self._num_hits += num_items

    def count_saved(self, modalities: Mapping[str, Modality], tenant: str) -> None:
        """Count the seconds that items, by key, have saved a request that was sent without processing them.

        Counts those that are in the store, also where an engine loads the encoder output instead.
        """

    def release(self, items: Sequence[OutgoingItem]) -> None:
        """Unpin the items of one `resolve`, exactly once: the request has ended or is not sent."""

    def inline(self, items: Sequence[OutgoingItem]) -> list[OutgoingItem]:
        """Return the same items, with pinned items of the store as frames."""
        return list(items)

    def keep(self, key: str, item: GatewayItem) -> None:
        """Keep a processed item that no request needs any more, if this mode keeps items in the frontend."""

    def missed(self, mm_hashes: Sequence[str]) -> None:
        """Record that the engine does not have these items."""

    def engine_changed(self) -> None:
        """Record that a new engine process has connected: its cache is empty."""

    def clear(self) -> None:
        """Drop all items."""

    @property
    def next_mirror_seq(self) -> int:
        """Sequence number of the next message that changes the mirror; 0 without a mirror."""
        return 0

    @property
    def num_desyncs(self) -> int:
        """Items that the mirror listed and the engine did not have."""
        return 0

    def stats(self) -> ProcessorCacheStats:
        """Return the cache's counters; processing is counted elsewhere."""
        return ProcessorCacheStats(
            queries=self._num_hits + self._num_new,
            hits=self._num_hits,
            inline_items=self._num_inline,
            inline_fallbacks=self._num_fallbacks,
        )
