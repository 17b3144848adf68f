"""P1's end of the mirrored cache (mode `lru`): items that came once, so that later requests may name them without data.

    ingest(seq, items)                       with data   -> kept, and served; the newest always wins
      seq is not the next one: clear first   without     -> served from here, or missed
      then one move of the whole request     all misses  -> one CacheMiss, after everything that came was kept

The sender's mirror has made the same move, with the same sizes, before this message left it; see
`mmcached.cache.request_lru` for the move, and P0's `lru_sender_cache` for the numbering. A message is ingested before
anything else in it is judged: the mirror has moved, whatever becomes of the request.

In the service an item is the frames in which it came, with the size that came with it; nothing is decoded, and torch is
not needed. The library face (`get_and_update_features`) keeps items. One instance is used through one face.

Source: vLLM's `MultiModalReceiverCache`, and its later typed miss; the first kept an old payload when a new one came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmcached.cache import (
    BaseMultiModalReceiverCache,
    Entry,
    MultiModalCache,
    MultiModalFeatureSpec,
    MultiModalKwargsItem,
    ReceiverInput,
    RequestLRU,
    ShmItem,
    processor_cache_kind,
)
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, InvariantError, LocalProtocolError, RemoteProtocolError
from mmcached.wire.sockets.channels import Frame

Frames = tuple[Frame, ...]
Kept = Frames | MultiModalKwargsItem


class ReceivedItem(NamedTuple):
    """One item of a request as it came.

    Attributes:
        nbytes: of the encoded item, whether it came or not.
        frames: the encoded item, or None: it should be here.
    """

    mm_hash: str
    nbytes: int
    frames: Sequence[Frame] | None


@dataclass(frozen=True, slots=True)
class ReceiverCacheStats:
    """Counters since the start: a query per item, a hit came without data and was here, a miss was not.

    `num_gaps` counts messages that did not follow the one before. `num_entries` and `nbytes` are gauges.
    """

    queries: int
    hits: int
    misses: int
    num_gaps: int
    num_entries: int
    nbytes: int


class MultiModalReceiverCache(BaseMultiModalReceiverCache):
    """Key -> the item, as frames or as itself; at most `processor_cache_bytes`, the least recently used go first."""

    def __init__(self, config: ServiceConfig) -> None:
        self._lru: RequestLRU[Kept] = RequestLRU(config.processor_cache_bytes)
        self._last_mirror_seq: int | None = None
        self._num_queries = self._num_hits = self._num_misses = self._num_gaps = 0

    # ---- the service's face

    def ingest(self, mirror_seq: int, items: Sequence[ReceivedItem]) -> list[Frames]:
        """Take a message's items in, and return the frames of each, in prompt order.

        An item that comes without data and with another size than it has here is missed: the ends have drifted.

        Args:
            mirror_seq: the message's number, from 1 on. If it does not follow the last one, all is forgotten first.
        Raises:
            CacheMiss: names all that came without data and are not here, each once, in order. The others are kept.
            RemoteProtocolError: no number, or an item larger than it says; nothing has changed, and the next message
                will show a gap.
        """
        if mirror_seq < 1:
            raise RemoteProtocolError("the sender keeps no mirror, the receiver does", "mirror_seq")
        for index, item in enumerate(items):
            nbytes = 0 if item.frames is None else sum(memoryview(frame).nbytes for frame in item.frames)
            if nbytes > item.nbytes:
                raise RemoteProtocolError(
                    f"{nbytes} bytes came, {item.nbytes} were stated", f"features[{index}].nbytes"
                )
        if self._last_mirror_seq is not None and mirror_seq != self._last_mirror_seq + 1:
            self._num_gaps += 1
            self._lru.clear()
        self._last_mirror_seq = mirror_seq
        keys = [item.mm_hash for item in items]
        given: list[Entry[Kept] | None] = [
            None if item.frames is None else Entry(item.nbytes, tuple(item.frames)) for item in items
        ]
        found = [
            entry if entry is not None and entry.nbytes == item.nbytes else None
            for entry, item in zip(self._lru.move(keys, given), items, strict=True)
        ]
        self._count(given, found)
        _check_misses(keys, found)
        return [_as_frames(entry.value) for entry in found if entry is not None]

    # ---- the library's face

    def touch_receiver_cache_item(self, mm_hash: str, mm_item: ReceiverInput = None) -> None:
        self._lru.touch(mm_hash)

    def get_and_update_item(self, mm_item: ReceiverInput, mm_hash: str) -> MultiModalKwargsItem:
        """Return the item: the given one, which is kept if it fits, else the one that is here.

        Raises:
            CacheMiss: neither given nor here; nothing has changed.
            LocalProtocolError: the item lies in a ring, which this cache does not read.
        """
        if mm_item is None:
            entry = self._lru.touch(mm_hash)
            if entry is not None:
                self._num_queries += 1
                self._num_hits += 1
                return _as_item(entry.value)
        return self._get_and_update([mm_item], [mm_hash])[0]

    def get_and_update(self, mm_items: Sequence[ReceiverInput], mm_hashes: Sequence[str]) -> list[MultiModalKwargsItem]:
        if len(mm_items) != len(mm_hashes):
            raise ValueError(f"{len(mm_items)} items for {len(mm_hashes)} hashes")
        if len(mm_items) == 1:
            return [self.get_and_update_item(mm_items[0], mm_hashes[0])]
        return self._get_and_update(mm_items, mm_hashes)

    def _get_and_update(
        self, mm_items: Sequence[ReceiverInput], mm_hashes: Sequence[str]
    ) -> list[MultiModalKwargsItem]:
        found = self._take(mm_items, mm_hashes)
        _check_misses(mm_hashes, found)
        return [_as_item(entry.value) for entry in found if entry is not None]

    def get_and_update_features(self, mm_features: Sequence[MultiModalFeatureSpec]) -> list[MultiModalFeatureSpec]:
        keys = [feature.cache_key for feature in mm_features]
        found = self._take([feature.data for feature in mm_features], keys)
        for feature, entry in zip(mm_features, found, strict=True):
            if entry is not None:
                feature.data = _as_item(entry.value)
        _check_misses(keys, found)
        return list(mm_features)

    # ---- both

    def clear_cache(self) -> None:
        """Forget every item, as after a flush, or when there is a new frontend. Any number may come next."""
        self._lru.clear()
        self._last_mirror_seq = None

    def contents(self) -> list[tuple[str, int]]:
        """Return `(key, bytes)` of all entries, the oldest first."""
        return self._lru.contents()

    def stats(self) -> ReceiverCacheStats:
        return ReceiverCacheStats(
            queries=self._num_queries,
            hits=self._num_hits,
            misses=self._num_misses,
            num_gaps=self._num_gaps,
            num_entries=len(self._lru),
            nbytes=self._lru.usage,
        )

    def check_integrity(self) -> None:
        self._lru.check_integrity()
        if self._num_hits + self._num_misses > self._num_queries:
            raise InvariantError(
                f"receiver cache: {self._num_hits} hits and {self._num_misses} misses of {self._num_queries} queries"
            )

    def close(self) -> None:
        self._lru.clear()

    def _take(self, mm_items: Sequence[ReceiverInput], keys: Sequence[str]) -> list[Entry[Kept] | None]:
        given = [None if mm_item is None else _entry_of(mm_item) for mm_item in mm_items]
        found = self._lru.move(keys, given)
        self._count(given, found)
        return found

    def _count(self, given: Sequence[Entry[Kept] | None], found: Sequence[Entry[Kept] | None]) -> None:
        for fresh, entry in zip(given, found, strict=True):
            self._num_queries += 1
            if entry is None:
                self._num_misses += 1
            elif fresh is None:
                self._num_hits += 1


def engine_receiver_cache_from_config(
    config: ServiceConfig, mm_registry: object = None
) -> MultiModalReceiverCache | None:
    """Return the receiver that a configuration asks of an engine, or None: nothing is mirrored.

    Args:
        mm_registry: accepted for callers of vLLM's function, and not used: the configuration says it all.
    """
    return MultiModalReceiverCache(config) if processor_cache_kind(config) == "lru" else None


def _entry_of(mm_item: ReceiverInput) -> Entry[Kept] | None:
    if mm_item is None:
        return None
    if isinstance(mm_item, ShmItem):
        raise LocalProtocolError("an item in a ring is for the receiver cache of a worker, which reads it")
    return Entry(MultiModalCache.get_item_size(mm_item), mm_item)


def _check_misses(keys: Sequence[str], found: Sequence[Entry[Kept] | None]) -> None:
    if None in found:
        raise CacheMiss([key for key, entry in dict(zip(keys, found, strict=True)).items() if entry is None])


def _as_frames(value: Kept) -> Frames:
    if isinstance(value, MultiModalKwargsItem):
        raise LocalProtocolError("this receiver cache is used through its library face: it keeps items, not frames")
    return value


def _as_item(value: Kept) -> MultiModalKwargsItem:
    if not isinstance(value, MultiModalKwargsItem):
        raise LocalProtocolError("this receiver cache is used by a service: it keeps frames, not items")
    return value
