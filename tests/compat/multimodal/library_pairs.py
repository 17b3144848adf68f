"""Both ends of each mode in one process, at the library's face: a sender, and the receivers that the mode has.

    hand_out(keys)  ->  what P0 sends  ->  deliver  ->  what the model gets, from each receiver
    serve(keys)         both, and again for what was missed, as a frontend does

    mode             sender                          receivers
    off              none                            hand on what they get
    processor_only   MultiModalProcessorOnlyCache    hand on what they get
    lru              MultiModalProcessorSenderCache  one MultiModalReceiverCache
    shm              ShmObjectStoreSenderCache       ShmObjectStoreReceiverCache, any number

There is one item for each key, so what the model has to get is known. Sizes are tiny: see `CAPACITY`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from mmcached.cache import (
    BaseMultiModalReceiverCache,
    MultiModalFeatureSpec,
    MultiModalKwargsItem,
    ResolvedPromptUpdate,
)
from mmcached.cache.kinds import ProcessorCacheKind
from mmcached.compat.multimodal.base import ReceiverInput, SenderInput
from mmcached.compat.multimodal.features import PlaceholderRange
from mmcached.compat.multimodal.shm_sender_cache import ShmObjectStoreSenderCache
from mmcached.engine import engine_receiver_cache_from_config
from mmcached.frontend import processor_cache_from_config
from mmcached.shm import ObjectStoreWriter, RingWriter
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import CacheMiss
from mmcached.worker import ShmObjectStoreReceiverCache
from tests.compat.integrity import check_sender
from tests.compat.multimodal.contracts import Content, content

CAPACITY = 8 << 10
"""Bytes: room for 8 items of the commonest size, in a ring for some fewer, since chunks have headers."""

SIZES = (1024, 1024, 1024, 64, 3000, 12 << 10)
"""Of items, in bytes, by the key's number; the last is larger than everything."""


def size_of(key: str) -> int:
    return SIZES[int(key) % len(SIZES)]


def item_for(key: str) -> MultiModalKwargsItem:
    """Process the item of a key: always the same."""
    pixels = np.full(size_of(key), int(key), dtype=np.uint8)
    return MultiModalKwargsItem.from_record({"pixels": pixels, "grid": np.array([int(key), 1], np.int64)})


def expected(keys: Sequence[str]) -> list[Content]:
    """Return what the model gets without any cache."""
    return [content(item_for(key)) for key in keys]


Sent = list[ReceiverInput]
Items = list[MultiModalKwargsItem]


class LibraryPair:
    """The two ends of one mode; closed by `close`.

    Attributes:
        num_processed: items that were processed, once per request and key.
        num_resends: requests that were handed out once more, because something of them was missed.
    """

    def __init__(
        self,
        kind: ProcessorCacheKind,
        num_receivers: int = 1,
        *,
        inline_max_kb: int = 0,
        reader_quota_bytes: int | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._reader_quota_bytes = reader_quota_bytes
        self.kind = kind
        self.num_processed = self.num_resends = 0
        self.config = ServiceConfig(
            mm_processor_cache_gb=0.0 if kind == "off" else CAPACITY / GIB,
            mm_processor_cache_type="shm" if kind == "off" else kind,
            mm_shm_inline_max_kb=inline_max_kb,
        )
        self.store = self._make_store() if kind == "shm" else None
        self.sender = processor_cache_from_config(self.config, self.store)
        if self.sender is not None:
            self._stack.callback(self.sender.close)
        self.receivers: list[BaseMultiModalReceiverCache | None] = [self._make_receiver() for _ in range(num_receivers)]

    # ---- requests

    def hand_out(self, keys: Sequence[str], num_looks: int = 0, *, keeps: bool = False) -> Sent:
        """Return what P0 sends for a request; handing out counts as sending.

        Args:
            num_looks: how often to ask what is there, before it is asked for good.
            keeps: nothing of it goes before `release_sender_touches`.
        """
        if self.sender is None:
            return [self._process(key) for key in keys]
        for _ in range(num_looks):
            self.sender.is_cached(keys)
        given: list[SenderInput] = [
            None if is_cached else (self._process(key), [ResolvedPromptUpdate("image", 9, 9, int(key) + 1)])
            for key, is_cached in zip(keys, self.sender.is_cached(keys), strict=True)
        ]
        for key in keys:
            self.sender.touch_sender_cache_item(key)
        try:
            outputs = self.sender.get_and_update(given, keys)
        except BaseException:
            self.sender.release_sender_touches()
            raise
        if not keeps:
            self.sender.release_sender_touches()
        assert [update.length for _, updates in outputs for update in updates] == [int(key) + 1 for key in keys]
        return [item for item, _ in outputs]

    def deliver(self, index: int, sent: Sent, keys: Sequence[str]) -> Items:
        """Return what the model gets from one receiver; raises CacheMiss."""
        features = [
            MultiModalFeatureSpec(data, "image", f"adapter:{key}", PlaceholderRange(place, 1), key)
            for place, (data, key) in enumerate(zip(sent, keys, strict=True))
        ]
        receiver = self.receivers[index]
        if receiver is not None:
            features = receiver.get_and_update_features(features)
        items = []
        for feature in features:
            assert isinstance(feature.data, MultiModalKwargsItem)
            items.append(feature.data)
        return items

    def serve(self, keys: Sequence[str], num_looks: int = 0, *, sent: Sent | None = None) -> list[Items]:
        """Hand out and deliver to every receiver, and again what was missed: nothing is missed twice.

        Args:
            sent: what was handed out for this request earlier; it may be out of date.
        """
        resent: set[str] = set()
        while True:
            sent = self.hand_out(keys, num_looks, keeps=True) if sent is None else sent
            missed: list[str] = []
            served = []
            for index in range(len(self.receivers)):
                try:
                    served.append(self.deliver(index, sent, keys))
                except CacheMiss as miss:
                    missed += miss.mm_hashes
            if self.sender is not None:
                self.sender.release_sender_touches()
            if not missed:
                return served
            assert not resent & set(missed), f"{missed} were sent again, and missed again"
            assert set(missed) <= set(keys)
            resent.update(missed)
            self.num_resends += 1
            sent = None
            if self.sender is not None:
                for key in missed:
                    self.sender.invalidate(key)

    def abort(self, sent: Sent, keys: Sequence[str]) -> None:
        """A request is over before the model has seen it: it never arrives, and holds nothing."""

    # ---- what happens to the ends

    def forget(self, index: int) -> None:
        """A receiver loses what it holds: it is cleared, or another takes its place."""
        receiver = self.receivers[index]
        if isinstance(receiver, ShmObjectStoreReceiverCache):
            receiver.close()
            self.receivers[index] = self._make_receiver()
            assert self.store is not None
            self.store.ring.readers.poll_deaths()
        elif receiver is not None:
            receiver.clear_cache()

    def check_integrity(self) -> None:
        if isinstance(self.sender, ShmObjectStoreSenderCache):
            check_sender(self.sender)

    def num_leases(self) -> int:
        """Return how many leases are out."""
        if self.store is None:
            return 0
        for receiver in self.receivers:
            assert isinstance(receiver, ShmObjectStoreReceiverCache)
        self.store.ring.readers.poll_deaths()
        return self.store.stats().leases

    def close(self) -> None:
        for receiver in self.receivers:
            if receiver is not None:
                receiver.close()
        self._stack.close()

    def _process(self, key: str) -> MultiModalKwargsItem:
        self.num_processed += 1
        return item_for(key)

    def _make_store(self) -> ObjectStoreWriter:
        ring = RingWriter.create(
            data_bytes=CAPACITY,
            num_slots=16,
            max_readers=8,
            max_object_bytes=CAPACITY,
            reader_quota_bytes=self._reader_quota_bytes,
        )
        return self._stack.enter_context(ObjectStoreWriter(ring))

    def _make_receiver(self) -> BaseMultiModalReceiverCache | None:
        if self.store is None:
            return engine_receiver_cache_from_config(self.config)
        receiver = ShmObjectStoreReceiverCache(self.store.ring.announcement)
        assert self.store.ring.readers.attach(receiver.reader_id, receiver.incarnation)
        return receiver


PAIRS: dict[str, Callable[[], LibraryPair]] = {
    "off": lambda: LibraryPair("off"),
    "processor_only": lambda: LibraryPair("processor_only"),
    "lru": lambda: LibraryPair("lru"),
    "shm, 1 receiver": lambda: LibraryPair("shm"),
    "shm, 2 receivers": lambda: LibraryPair("shm", 2),
    "shm, small items inline": lambda: LibraryPair("shm", 2, inline_max_kb=1),
}
