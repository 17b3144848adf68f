"""The ways by which processed items reach an engine: one class for each mode of the processor cache.

    UncachedRoute       off              nothing is kept, frames inline
    ProcessorOnlyRoute  processor_only   kept here, frames inline
    MirrorRoute         lru              kept in the engine; here only its mirror. Frames once, then nothing
    RingRoute           shm              kept in the ring. Handles; frames only for what does not fit

    missing --> (processing, as long as it takes) --> missing: nothing but what was processed
                                                         |
    resolve --> (leases, send) --> sent        the engine's queue has the message: mirrors move now, and only now
                       |
                       +--> (refused)          no mirror has moved
    release                                    in either case: unpin

From the last `missing` to `release` is one uninterrupted stretch of the frontend's one thread, so nothing can come
between what a cache says and the message that is built from it. An item that a request names twice counts once, and its
bytes travel once.

Knows nothing of sockets, leases, engines or images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from mmcached.cache import MultiModalKwargsItem, ResolvedPromptUpdate
from mmcached.frontend.caches.lru_sender_cache import MirroredItem, MultiModalProcessorSenderCache
from mmcached.frontend.caches.processor_only_cache import MultiModalProcessorOnlyCache
from mmcached.frontend.caches.sender_cache import ShmItem, ShmObjectStoreSenderCache
from mmcached.frontend.processing.item_processor import Processed
from mmcached.shm.store import codec
from mmcached.wire.errors import InvariantError
from mmcached.wire.handle import Handle
from mmcached.wire.sockets.channels import Frame
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
    """What the frontend asks of any mode. `keys` are those of a request's items, in prompt order."""

    def missing(self, keys: Sequence[str]) -> list[str]:
        """Return the keys, each once, whose items have to be given to `resolve`; changes nothing."""

    def resolve(self, keys: Sequence[str], given: Mapping[str, Processed]) -> list[RoutedItem]:
        """Return how each item of a request would travel; those that the ring holds stay pinned until `release`.

        Args:
            given: what is `missing`, or more.
        """

    def sent(self, items: Sequence[RoutedItem]) -> None:
        """The message with these items has been accepted."""

    def release(self) -> None:
        """The request was sent or given up."""

    def keep(self, key: str, processed: Processed) -> None:
        """Take an item that was processed, but that no request needs any more, if this side keeps items."""

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

    def stats(self) -> ProcessorCacheStats:
        """Return the cache's figures; what was processed for it is counted elsewhere."""


class _Route:
    """What the modes share: counting what travels inline, and doing nothing where a mode has nothing to do."""

    def __init__(self) -> None:
        self._num_inline = 0

    def sent(self, items: Sequence[RoutedItem]) -> None:
        self._num_inline += len({item.mm_hash for item in items if isinstance(item.payload, list)})

    def release(self) -> None:
        pass

    def keep(self, key: str, processed: Processed) -> None:
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
        return msgspec.structs.replace(stats, inline_items=self._num_inline)


class UncachedRoute(_Route):
    """The off switch: every item of every request is processed and travels as frames."""

    def missing(self, keys: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(keys))

    def resolve(self, keys: Sequence[str], given: Mapping[str, Processed]) -> list[RoutedItem]:
        routed = {key: _inline(key, *given[key]) for key in dict.fromkeys(keys)}
        return [routed[key] for key in keys]

    def stats(self) -> ProcessorCacheStats:
        return self._with_counts(ProcessorCacheStats())


class _CachedRoute(_Route):
    """Items are kept on this side: processed once, then looked up."""

    _cache: MultiModalProcessorOnlyCache | ShmObjectStoreSenderCache

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in dict.fromkeys(keys) if not self._cache.is_cached_item(key)]

    def keep(self, key: str, processed: Processed) -> None:
        if not self._cache.is_cached_item(key):
            self._cache.get_and_update_item(processed, key)

    def release(self) -> None:
        self._cache.release_sender_touches()

    def clear(self) -> None:
        self._cache.clear_cache()

    def stats(self) -> ProcessorCacheStats:
        return self._with_counts(self._cache.stats())


class ProcessorOnlyRoute(_CachedRoute):
    """Items are kept by this process, and sent each time."""

    def __init__(self, cache: MultiModalProcessorOnlyCache) -> None:
        super().__init__()
        self._cache: MultiModalProcessorOnlyCache = cache

    def resolve(self, keys: Sequence[str], given: Mapping[str, Processed]) -> list[RoutedItem]:
        unique = list(dict.fromkeys(keys))
        # As a whole: an item that others of this request evict is served all the same.
        found = self._cache.get_and_update([given.get(key) for key in unique], unique)
        routed = {}
        for key, (item, updates) in zip(unique, found, strict=True):
            if not isinstance(item, MultiModalKwargsItem):
                raise InvariantError(f"the processor cache has given {item!r} for the item {key}")
            routed[key] = _inline(key, item, updates)
        return [routed[key] for key in keys]


class RingRoute(_CachedRoute):
    """Items lie in the ring, for any number of engines; what does not fit is sent inline."""

    def __init__(self, cache: ShmObjectStoreSenderCache) -> None:
        super().__init__()
        self._cache: ShmObjectStoreSenderCache = cache

    def resolve(self, keys: Sequence[str], given: Mapping[str, Processed]) -> list[RoutedItem]:
        unique = dict.fromkeys(keys)
        for key in unique:
            self._cache.touch_sender_cache_item(key)
        routed = {key: self._resolve_one(key, given.get(key)) for key in unique}
        return [routed[key] for key in keys]

    def _resolve_one(self, key: str, given: Processed | None) -> RoutedItem:
        item, updates = self._cache.get_and_update_item(given, key)
        # Later items of this request must not evict what it is about to send.
        self._cache.touch_sender_cache_item(key)
        if isinstance(item, ShmItem):
            return RoutedItem(key, item.handle.nbytes, updates, item.handle)
        return _inline(key, item, updates)


class MirrorRoute(_Route):
    """Items live in the engine. The mirror here says which, and moves exactly when the engine's cache will."""

    def __init__(self, cache: MultiModalProcessorSenderCache) -> None:
        super().__init__()
        self._cache = cache
        self._num_repeats = 0

    def missing(self, keys: Sequence[str]) -> list[str]:
        unique = list(dict.fromkeys(keys))
        return [key for key, is_there in zip(unique, self._cache.plan(unique), strict=True) if not is_there]

    def resolve(self, keys: Sequence[str], given: Mapping[str, Processed]) -> list[RoutedItem]:
        fresh: dict[str, RoutedItem] = {}
        routed = []
        for key, is_there in zip(keys, self._cache.plan(keys), strict=True):
            if not is_there:
                fresh[key] = _inline(key, *given[key])
                routed.append(fresh[key])
            elif key in fresh:  # it goes with this very message
                routed.append(RoutedItem(key, fresh[key].nbytes, fresh[key].updates, None))
            else:
                known = self._cache.metadata(key)
                routed.append(RoutedItem(key, known.nbytes, known.prompt_updates, None))
        return routed

    def sent(self, items: Sequence[RoutedItem]) -> None:
        super().sent(items)
        # The engine's cache moves by every item that the message names, so the mirror does; it counts each as a query.
        self._cache.apply([MirroredItem(item.mm_hash, item.nbytes, tuple(item.updates)) for item in items])
        self._num_repeats += len(items) - len({item.mm_hash for item in items})

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
        stats = self._with_counts(self._cache.stats())
        return msgspec.structs.replace(
            stats, queries=stats.queries - self._num_repeats, hits=stats.hits - self._num_repeats
        )


ProcessorCache = ShmObjectStoreSenderCache | MultiModalProcessorSenderCache | MultiModalProcessorOnlyCache


def route_for(cache: ProcessorCache | None) -> ItemRoute:
    """Return the route that goes with a processor cache; None is the off switch."""
    match cache:
        case None:
            return UncachedRoute()
        case ShmObjectStoreSenderCache():
            return RingRoute(cache)
        case MultiModalProcessorSenderCache():
            return MirrorRoute(cache)
        case MultiModalProcessorOnlyCache():
            return ProcessorOnlyRoute(cache)


def _inline(key: str, item: MultiModalKwargsItem, updates: Sequence[ResolvedPromptUpdate]) -> RoutedItem:
    encoded = codec.encode(item.to_record())
    return RoutedItem(key, encoded.nbytes, updates, list(encoded.frames()))
