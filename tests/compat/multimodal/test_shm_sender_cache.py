"""The sender cache over a real ring, with real readers that hold leases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from mmcached.cache import MultiModalKwargsItem
from mmcached.compat.multimodal.features import ShmItem
from mmcached.frontend import ShmObjectStoreSenderCache
from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, ReaderEntry, RingReader, RingWriter
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import InvalidRequest, StaleHandle
from tests.compat.integrity import check_sender
from tests.compat.multimodal.contracts import PROCESSOR_CACHE_PROMISES, Promise, an_item
from tests.shm.rings import Taking

KIB = 1 << 10
MIB = 1 << 20
LARGE = 64 * KIB


class Pair:
    """Both ends in one process: a sender cache over a ring, and as many readers as a test attaches."""

    def __init__(
        self,
        stack: ExitStack,
        data_bytes: int = MIB,
        max_object_bytes: int = MIB,
        *,
        inline_max_kb: int = 0,
    ) -> None:
        self._stack = stack
        self.keeps = False  # what was handed out until it is released
        self.ring = stack.enter_context(
            RingWriter.create(data_bytes=data_bytes, num_slots=64, max_readers=4, max_object_bytes=max_object_bytes)
        )
        self.store = ObjectStoreWriter(self.ring)
        self.config = ServiceConfig(mm_processor_cache_gb=data_bytes / GIB, mm_shm_inline_max_kb=inline_max_kb)
        self.cache = stack.enter_context(ShmObjectStoreSenderCache(self.config, self.store))
        self.reader = stack.enter_context(ObjectStoreReader(RingReader.open(self.ring.announcement)))

    def attach(self) -> ReaderEntry:
        entry = self._stack.enter_context(ReaderEntry.attach(self.ring.announcement))
        assert self.ring.readers.attach(entry.reader_id, entry.incarnation)
        return entry

    def send(self, value: int, nbytes: int = LARGE) -> ShmItem | None:
        """Give item `value`; return where it lies, or None if it travels inline."""
        item, _ = self.cache.get_and_update_item(an_item(value, nbytes), str(value))
        if not self.keeps:
            self.cache.release_sender_touches()
        return item if isinstance(item, ShmItem) else None

    def put(self, value: int, nbytes: int = LARGE) -> ShmItem:
        sent = self.send(value, nbytes)
        assert sent is not None
        return sent

    def take(self, entry: ReaderEntry, sent: ShmItem) -> bool:
        """Take a reader's lease on an item; return whether it holds."""
        return all(entry.take_leases([Taking(sent.handle)], self.reader.reader.look))

    def read(self, sent: ShmItem) -> int:
        """Return the value of an item, checked to be the same in every byte."""
        data = self.reader.get(sent.handle, tensors="numpy", copy=True)["data"]
        assert (data == data[0]).all()
        return int(data[0])

    def cached(self) -> list[int]:
        return [value for value in range(256) if self.cache.is_cached_item(str(value))]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pair(stack: ExitStack) -> Pair:
    return Pair(stack)


@pytest.mark.parametrize(("inline_max_kb", "num_readers"), [(0, 0), (16, 0), (0, 2)])
@pytest.mark.parametrize("promise", PROCESSOR_CACHE_PROMISES, ids=lambda promise: promise.__name__)
def test_promises(promise: Promise, inline_max_kb: int, num_readers: int, stack: ExitStack) -> None:
    """Also where small items are kept here, and with readers."""
    pair = Pair(stack, inline_max_kb=inline_max_kb)
    for _ in range(num_readers):
        pair.attach()
    promise(pair.cache)
    check_sender(pair.cache)


def test_an_item_is_written_once_and_read_by_many(pair: Pair) -> None:
    entries = [pair.attach(), pair.attach()]
    first = pair.put(7)
    assert pair.read(first) == 7
    again, _ = pair.cache.get_and_update_item(None, "7")
    assert again == first
    for entry in entries:
        assert pair.take(entry, first)
    assert (pair.ring.stats().puts, pair.ring.stats().leases) == (1, 2)
    for entry in entries:
        entry.give_back(first.handle)
    assert pair.ring.stats().leases == 0


# ---- what does not fit travels inline


def test_an_item_beyond_the_configured_limit_travels_inline(stack: ExitStack) -> None:
    """The configuration's limit holds also where the ring would take it, and before anything is encoded."""
    pair = Pair(stack, data_bytes=4 * MIB, max_object_bytes=4 * MIB)
    narrow = ServiceConfig(mm_processor_cache_gb=4 * MIB / GIB, mm_shm_cache_max_object_size_mb=1)
    with ShmObjectStoreSenderCache(narrow, pair.store) as cache:
        item, _ = cache.get_and_update_item(an_item(1, 2 * MIB), "big")
        assert isinstance(item, MultiModalKwargsItem)
        assert cache.stats().inline_fallbacks == 1
    assert pair.send(1, 2 * MIB) is not None


def test_a_ring_full_of_leases_serves_inline_and_recovers(pair: Pair) -> None:
    entry = pair.attach()
    sent: list[ShmItem] = []
    while (item := pair.send(len(sent))) is not None:
        assert pair.take(entry, item)
        sent.append(item)
    assert len(sent) > 10
    value = len(sent)
    for _ in range(3):
        assert pair.send(value) is None, "refused once is not wedged, and never an error"
    assert not pair.cache.is_cached_item(str(value))
    stats = pair.cache.stats()
    assert (stats.inline_fallbacks, stats.inline_items) == (4, 4)
    assert stats.items_processed == len(sent) + 4
    assert [pair.read(item) for item in sent] == list(range(value))

    entry.give_back(sent[3].handle)
    assert pair.send(value) is not None
    assert not pair.cache.is_cached_item("3")


# ---- what is small never sees the ring


def test_a_small_item_is_kept_here_and_handed_out_itself(stack: ExitStack) -> None:
    pair = Pair(stack, inline_max_kb=4)
    pair.attach()
    small, large = an_item(1, 4 * KIB - 1), an_item(2, 4 * KIB)
    for brought in (small, None):
        item, updates = pair.cache.get_and_update_item(brought, "small")
        assert (item, list(updates)) == small
    assert isinstance(pair.cache.get_and_update_item(large, "large")[0], ShmItem)
    stats = pair.cache.stats()
    assert (stats.queries, stats.hits, stats.inline_items, stats.inline_fallbacks) == (3, 1, 2, 0)
    assert pair.ring.stats().puts == 1
    pair.cache.invalidate("small")
    assert pair.cache.is_cached(["small", "large"]) == [False, True]


def test_small_items_take_a_sixteenth_and_the_oldest_go(stack: ExitStack) -> None:
    pair = Pair(stack, inline_max_kb=4)
    for value in range(100):
        pair.cache.get_and_update_item(an_item(value, 2 * KIB), str(value))
    assert pair.cached() == list(range(100 - 32, 100)), "64 KiB of them"
    kept = str(100 - 32)
    pair.cache.touch_sender_cache_item(kept)
    for value in range(100, 200):
        pair.cache.get_and_update_item(an_item(value, 2 * KIB), str(value))
    assert pair.cache.is_cached_item(kept), "touched until it is sent"
    pair.cache.release_sender_touches()
    for value in range(200, 240):
        pair.cache.get_and_update_item(an_item(value, 2 * KIB), str(value))
    assert not pair.cache.is_cached_item(kept)


# ---- the two passes


def ring_of_three(stack: ExitStack) -> Pair:
    """A ring with room for three items of 5 units and a rest of less than 2."""
    return Pair(stack, data_bytes=16 * LARGE)


def test_a_touched_key_is_not_evicted_by_its_own_request(stack: ExitStack) -> None:
    """A, B, C of 5 units; then a request for G (2 units) and A. A was touched, so G takes the place of one other."""
    pair = ring_of_three(stack)
    a, b, c, g = range(4)
    for value in (a, b, c):
        pair.put(value, 5 * LARGE)
    pair.keeps = True
    assert pair.cached() == [a, b, c]

    for value in (g, a):
        pair.cache.touch_sender_cache_item(str(value))
    pair.put(g, 2 * LARGE)
    pair.cache.get_and_update_item(None, str(a))
    assert pair.cached() == [a, c, g], "B was next for the hand, since A was touched"
    assert pair.ring.stats().evictions == 1
    pair.cache.release_sender_touches()

    h, i, j = range(4, 7)
    pair.cache.touch_sender_cache_item(str(c))
    pair.put(h, 2 * LARGE)
    assert pair.cached() == [a, c, g, h], "the rest of B's room was enough"
    assert pair.ring.stats().evictions == 1
    pair.put(i, 2 * LARGE)
    pair.put(j, 2 * LARGE)
    pair.cache.get_and_update_item(None, str(c))
    assert {c, i, j} <= set(pair.cached()), "a request's own items stay; which others go is the allocator's choice"


# ---- several at once


# ---- forgetting


def test_a_closed_cache_leaves_the_store_to_another(pair: Pair) -> None:
    """The new one has no prompt updates for what lies there, so these are misses, and are put anew."""
    pair.put(1)
    pair.cache.close()
    told_by_the_ring = pair.ring.records.on_evict
    with ShmObjectStoreSenderCache(pair.config, pair.store) as other:
        assert not other.is_cached_item("1")
        item, _ = other.get_and_update_item(an_item(1), "1")
        assert isinstance(item, ShmItem)
        assert other.is_cached_item("1")
    assert pair.ring.records.on_evict == told_by_the_ring


def test_an_item_that_cannot_travel_changes_nothing(pair: Pair) -> None:
    bad = MultiModalKwargsItem.from_record({"data": np.zeros(3), "bad": object()})
    with pytest.raises(InvalidRequest):
        pair.cache.get_and_update_item((bad, []), "bad")
    assert not pair.cache.is_cached_item("bad")
    assert pair.cache.stats().queries == 0


# ---- any order of everything


def test_a_chunk_is_named_by_its_slot_and_generation_too() -> None:
    with ExitStack() as stack:
        pair = Pair(stack)
        sent = pair.send(1)
        assert sent is not None
        again = pair.cache.address_as_item(sent.handle.slot, sent.handle.generation)
        assert isinstance(again, ShmItem)
        assert again.handle == sent.handle
        pair.cache.remove_dangling_items()
        assert pair.cache.is_cached_item("1")
        pair.cache.invalidate("1")
        with pytest.raises(StaleHandle, match=f"slot {sent.handle.slot}"):
            pair.cache.address_as_item(sent.handle.slot, sent.handle.generation)
