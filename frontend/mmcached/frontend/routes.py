"""The ways by which processed items reach an engine: one class for each mode of the processor cache.

    UncachedRoute       off              processed anew, frames inline
    ProcessorOnlyRoute  processor_only   kept here, frames inline
    MirrorRoute         lru              kept in the engine; here only its mirror. Frames once, then nothing
    RingRoute           shm              kept in the ring. Handles; frames only for what does not fit

A request goes through a route in one uninterrupted stretch of the frontend's one thread, so nothing can come between
what a cache says and the message that is built from it:

    resolve --> (leases, send) --> sent        the engine's queue has the message: mirrors move now, and only now
                       |
                       +--> (refused)          nothing has moved
    release                                    in either case: unpin

Knows nothing of sockets, leases or engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from mmcached.cache import MultiModalKwargsItem, ResolvedPromptUpdate
from mmcached.frontend.lru_sender_cache import MirroredItem, MultiModalProcessorSenderCache
from mmcached.frontend.processing import Processed, Processing
from mmcached.frontend.processor_only_cache import MultiModalProcessorOnlyCache
from mmcached.frontend.sender_cache import ShmItem, ShmObjectStoreSenderCache
from mmcached.shm import codec
from mmcached.wire.channels import Frame
from mmcached.wire.handle import Handle
from mmcached.wire.stats import ProcessorCacheStats


@dataclass(frozen=True, slots=True)
class RoutedItem:
    """One item as it will travel.

    Attributes:
        nbytes: size of the encoded item, also if it does not travel now.
        payload: a handle, the frames to send inline, or None: the engine has it.
    """

    mm_hash: str
    nbytes: int
    updates: Sequence[ResolvedPromptUpdate]
    payload: Handle | list[Frame] | None


class ItemRoute(Protocol):
    """What the frontend asks of any mode."""

    def resolve(self, images: Sequence[bytes], tenant: str) -> list[RoutedItem]:
        """Return how each image of a request would travel; those that the ring holds stay pinned until `release`.

        Raises:
            InvalidRequest: (a subclass) a bad image; names its index. Other items may have been cached by then.
        """

    def sent(self, items: Sequence[RoutedItem]) -> None:
        """The message with these items has been accepted."""

    def release(self) -> None:
        """The request was sent or given up."""

    def missed(self, mm_hashes: Sequence[str]) -> None:
        """The engine does not have these items: do not count on it for them."""

    def engine_changed(self) -> None:
        """Another engine process has come: it holds nothing."""

    def clear(self) -> None:
        """Forget every item."""

    @property
    def next_mirror_seq(self) -> int:
        """Number of the next message that moves the mirror; 0 without a mirror."""

    @property
    def num_desyncs(self) -> int:
        """Items that the mirror promised and the engine did not have."""

    def stats(self) -> ProcessorCacheStats: ...


class _Route:
    """What the modes share: processing, and counting what travels inline."""

    def __init__(self, processing: Processing) -> None:
        self._processing = processing
        self._num_inline = 0

    def sent(self, items: Sequence[RoutedItem]) -> None:
        self._num_inline += sum(isinstance(item.payload, list) for item in items)

    def release(self) -> None:
        pass

    def missed(self, mm_hashes: Sequence[str]) -> None:
        pass

    def engine_changed(self) -> None:
        pass

    def clear(self) -> None:
        pass

    @property
    def next_mirror_seq(self) -> int:
        return 0

    @property
    def num_desyncs(self) -> int:
        return 0

    def _with_counts(self, stats: ProcessorCacheStats) -> ProcessorCacheStats:
        return msgspec.structs.replace(
            stats, items_processed=self._processing.num_processed, inline_items=self._num_inline
        )


class UncachedRoute(_Route):
    """The off switch: every item of every request is processed and travels as frames."""

    def resolve(self, images: Sequence[bytes], tenant: str) -> list[RoutedItem]:
        keys = self._processing.keys(images, tenant)
        return [_inline(key, *self._processing.process(images, index)) for index, key in enumerate(keys)]

    def stats(self) -> ProcessorCacheStats:
        return self._with_counts(ProcessorCacheStats())


class _CachedRoute(_Route):
    """Items are kept on this side: processed once, then looked up."""

    def __init__(self, processing: Processing, cache: MultiModalProcessorOnlyCache | ShmObjectStoreSenderCache) -> None:
        super().__init__(processing)
        self._cache = cache

    def resolve(self, images: Sequence[bytes], tenant: str) -> list[RoutedItem]:
        keys = self._processing.keys(images, tenant)
        for key in keys:
            self._cache.touch_sender_cache_item(key)
        fresh: dict[str, Processed] = {}
        routed = []
        for index, key in enumerate(keys):
            if not self._cache.is_cached_item(key) and key not in fresh:
                fresh[key] = self._processing.process(images, index)
            item, updates = self._cache.get_and_update_item(fresh.get(key), key)
            # Later items of this request must not evict what it is about to send.
            self._cache.touch_sender_cache_item(key)
            if isinstance(item, ShmItem):
                routed.append(RoutedItem(key, item.handle.nbytes, updates, item.handle))
            else:
                routed.append(_inline(key, item, updates))
        return routed

    def release(self) -> None:
        self._cache.release_sender_touches()

    def clear(self) -> None:
        self._cache.clear_cache()

    def stats(self) -> ProcessorCacheStats:
        return self._with_counts(self._cache.stats())


class ProcessorOnlyRoute(_CachedRoute):
    """Items are kept by this process, and sent each time."""


class RingRoute(_CachedRoute):
    """Items lie in the ring, for any number of engines; what does not fit is sent inline."""


class MirrorRoute(_Route):
    """Items live in the engine. The mirror here says which, and moves exactly when the engine's cache will."""

    def __init__(self, processing: Processing, cache: MultiModalProcessorSenderCache) -> None:
        super().__init__(processing)
        self._cache = cache

    def resolve(self, images: Sequence[bytes], tenant: str) -> list[RoutedItem]:
        keys = self._processing.keys(images, tenant)
        fresh: dict[str, RoutedItem] = {}
        routed = []
        for index, (key, is_there) in enumerate(zip(keys, self._cache.plan(keys), strict=True)):
            if not is_there:
                fresh[key] = _inline(key, *self._processing.process(images, index))
                routed.append(fresh[key])
            elif key in fresh:  # it goes with this very message
                routed.append(RoutedItem(key, fresh[key].nbytes, fresh[key].updates, None))
            else:
                known = self._cache.metadata(key)
                routed.append(RoutedItem(key, known.nbytes, known.prompt_updates, None))
        return routed

    def sent(self, items: Sequence[RoutedItem]) -> None:
        super().sent(items)
        self._cache.apply([MirroredItem(item.mm_hash, item.nbytes, tuple(item.updates)) for item in items])

    def missed(self, mm_hashes: Sequence[str]) -> None:
        self._cache.note_misses(mm_hashes)

    def engine_changed(self) -> None:
        self._cache.clear_cache()

    def clear(self) -> None:
        self._cache.clear_cache()

    @property
    def next_mirror_seq(self) -> int:
        return self._cache.next_mirror_seq

    @property
    def num_desyncs(self) -> int:
        return self._cache.num_desyncs

    def stats(self) -> ProcessorCacheStats:
        return self._with_counts(self._cache.stats())


ProcessorCache = ShmObjectStoreSenderCache | MultiModalProcessorSenderCache | MultiModalProcessorOnlyCache


def route_for(cache: ProcessorCache | None, processing: Processing) -> ItemRoute:
    """Return the route that goes with a processor cache; None is the off switch."""
    match cache:
        case None:
            return UncachedRoute(processing)
        case ShmObjectStoreSenderCache():
            return RingRoute(processing, cache)
        case MultiModalProcessorSenderCache():
            return MirrorRoute(processing, cache)
        case MultiModalProcessorOnlyCache():
            return ProcessorOnlyRoute(processing, cache)


def _inline(key: str, item: MultiModalKwargsItem, updates: Sequence[ResolvedPromptUpdate]) -> RoutedItem:
    encoded = codec.encode(item.to_record())
    return RoutedItem(key, encoded.nbytes, updates, list(encoded.frames()))
