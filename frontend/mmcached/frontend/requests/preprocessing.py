"""Chooses what has the items of requests processed. A service without workers imports nothing that does.

workers       PreprocessQueue     threads, decoder processes, hashes, patches
no workers    NoPreprocessing     no request comes so far
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NoReturn, Protocol

from mmcached.frontend.caches.item_cache import ItemCache
from mmcached.frontend.processing.pool import Mailbox
from mmcached.frontend.requests.clip_records import ClipRecords
from mmcached.frontend.requests.item_counts import ItemCounts
from mmcached.frontend.requests.open_requests import OpenRequest
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvariantError
from mmcached.wire.stats import ProcessorCacheStats
from mmcached.wire.vocabulary import Modality

if TYPE_CHECKING:
    from mmcached.frontend.processing.processor import Processed


class Preprocessing(Protocol):
    """What requests ask of either; see `PreprocessQueue`."""

    items: ItemCache
    item_fingerprints: Mapping[Modality, str]
    counts: ItemCounts

    def fileno(self) -> int: ...
    def check(self, request: OpenRequest) -> None: ...
    def has_keys(self, request: OpenRequest) -> bool: ...
    def advance(self, request: OpenRequest, but: Container[str] = ()) -> Mapping[str, Processed] | None: ...
    def collect(self) -> Sequence[OpenRequest]: ...
    def leave(self, number: int, *, has_used: bool) -> None: ...
    def flush(self) -> None: ...
    def numbers(self) -> AbstractSet[int]: ...
    def stats(self, of_cache: ProcessorCacheStats) -> ProcessorCacheStats: ...
    def check_integrity(self) -> None: ...
    def close(self) -> None: ...


class NoPreprocessing:
    """Stands where nothing is processed; its descriptor never becomes readable."""

    item_fingerprints: Mapping[Modality, str] = {}

    def __init__(self, items: ItemCache) -> None:
        self.items = items
        self.counts = ItemCounts()
        self._mailbox = Mailbox()

    def fileno(self) -> int:
        return self._mailbox.fileno()

    def check(self, request: OpenRequest, but: Container[str] = ()) -> NoReturn:
        raise InvariantError("a request was admitted that nobody can serve")

    has_keys = advance = check

    def collect(self) -> list[OpenRequest]:
        return []

    def leave(self, number: int, *, has_used: bool) -> None:
        pass

    def flush(self) -> None:
        pass

    def numbers(self) -> AbstractSet[int]:
        return frozenset()

    def stats(self, of_cache: ProcessorCacheStats) -> ProcessorCacheStats:
        return of_cache

    def check_integrity(self) -> None:
        pass

    def close(self) -> None:
        self._mailbox.close()


def preprocessing_from_config(config: ServiceConfig, items: ItemCache, records: ClipRecords) -> Preprocessing:
    """Return what processes the items of this service's requests."""
    if not config.has_workers:
        return NoPreprocessing(items)
    from mmcached.frontend.processing.item_processor import Processing
    from mmcached.frontend.requests.preprocess_queue import PreprocessQueue

    return PreprocessQueue(config, Processing(config), items, records)
