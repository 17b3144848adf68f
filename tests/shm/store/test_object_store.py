from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mmcached.shm import ObjectStoreReader, ObjectStoreWriter, ReaderEntry, RingReader
from mmcached.shm.ring import lookup
from mmcached.shm.ring.key_index import key_digest, slots_of
from mmcached.shm.store import codec
from mmcached.wire.errors import (
    CacheFull,
    InvalidRequest,
    ItemTooLarge,
    LocalProtocolError,
    StaleHandle,
)
from mmcached.wire.handle import Handle
from tests.house.drawing import examples
from tests.shm.integrity import check_objects
from tests.shm.rings import Taking, attached, make_ring, reading


def record_of(value: int, num_bytes: int = 900) -> codec.Record:
    return {"value": value, "pixels": np.full(num_bytes, value, np.uint8)}


@pytest.fixture
def store() -> Iterator[ObjectStoreWriter]:
    """Room for about ten records."""
    with ObjectStoreWriter(make_ring(10 * 1088, max_object_bytes=5000)) as made:
        yield made


@pytest.fixture
def reader(store: ObjectStoreWriter) -> Iterator[ObjectStoreReader]:
    with ObjectStoreReader(RingReader.open(store.ring.announcement)) as made:
        yield made


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_key_is_put_once(store: ObjectStoreWriter) -> None:
    handle = store.put("a", record_of(1))
    with pytest.raises(LocalProtocolError, match="already exists"):
        store.put("a", record_of(2))
    assert store.find("a") == handle


def test_a_record_is_replaced_and_who_reads_it_reads_on() -> None:
    ring = make_ring(10 * 1088, has_index=True)
    with ObjectStoreWriter(ring) as store, reading(ring) as reader, attached(ring) as entry:
        digest = key_digest("a")
        old = store.put("a", record_of(1))
        assert entry.take_leases([Taking(old)], reader.look) == [True]
        new = store.replace("a", codec.encode(record_of(2)))
        assert (store.find("a"), reader.look.find(digest)) == (new, new)
        assert not ring.records.is_current(old)
        for index in range(30):  # twice around
            store.put(f"key {index}", record_of(index))
        held = ObjectStoreReader(reader).get(old, tensors="numpy", copy=True)
        assert set(held["pixels"].tolist()) == {held["value"]} == {1}
        entry.give_back(old)
        assert store.stats().pinned_bytes == 0
        with pytest.raises(LocalProtocolError, match="does not exist"):
            store.replace("nobody's", codec.encode(record_of(2)))


def test_a_record_that_cannot_be_replaced_stays() -> None:
    ring = make_ring(2 * 1088, max_object_bytes=2000, has_index=True)
    with ObjectStoreWriter(ring) as store, reading(ring) as reader, attached(ring) as entry:
        handles = [store.put(key, record_of(1)) for key in ("a", "b")]
        with pytest.raises(CacheFull):
            store.replace("a", codec.encode(record_of(2, 1200)))
        with pytest.raises(ItemTooLarge):
            store.replace("a", codec.encode(record_of(2, 3000)))
        assert [store.find(key) for key in ("a", "b")] == handles
        assert reader.look.find(key_digest("a")) == handles[0]
        assert entry.take_leases([Taking(handles[1])], reader.look) == [True]
        with pytest.raises(CacheFull):  # there is room only in its own place
            store.replace("a", codec.encode(record_of(2)))
        assert store.find("a") == handles[0]
        entry.give_back(handles[1])
        store.replace("a", codec.encode(record_of(2)))
        assert not store.find("b")


def test_a_look_that_was_shown_a_replaced_slot_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectStoreWriter(make_ring(10 * 1088, has_index=True)) as store, reading(store.ring) as reader:
        store.put("a", record_of(1))
        replaced = list[Handle]()

        def slots_of_late(*values: Any) -> list[int]:
            found = slots_of(*values)
            if len(replaced) < 3:
                replaced.append(store.replace("a", codec.encode(record_of(2))))
            return found

        monkeypatch.setattr(lookup, "slots_of", slots_of_late)
        assert reader.look.find(key_digest("a")) == replaced[-1]
        assert len(replaced) == 3
        store.discard("a")
        assert reader.look.find(key_digest("a")) is None


def test_eviction_takes_the_key_and_tells() -> None:
    seen: list[object] = []
    ring = make_ring(3 * 1088, on_evict=lambda handle: seen.append(handle.slot))
    with ObjectStoreWriter(ring, on_evict=seen.append) as store:
        for index in range(4):
            store.put(f"key {index}", record_of(index))
        assert seen == [0, "key 0"]
        assert [store.find(f"key {index}") is not None for index in range(4)] == [False, True, True, True]
        store.put("key 0", record_of(0))  # it may come again


def test_what_comes_back_outlives_what_nobody_knows(store: ObjectStoreWriter) -> None:
    for index in range(11):
        store.put(f"key {index}", record_of(index))
    assert not store.find("key 0")
    store.put("key 0", record_of(0))
    for index in range(11, 40):
        store.put(f"key {index}", record_of(index))
    assert store.find("key 0")
    assert not store.find("key 1")  # it went when that came back


def test_what_was_dropped_comes_as_a_newcomer(store: ObjectStoreWriter) -> None:
    store.put("dropped", record_of(0))
    store.discard("dropped")
    store.put("dropped", record_of(0))
    for index in range(10):
        store.put(f"key {index}", record_of(index))
    assert not store.find("dropped")


def derived(tensor: torch.Tensor) -> list[object]:
    return [
        tensor,
        tensor[10:20],
        tensor.view(torch.int16),
        torch.nn.Parameter(tensor, requires_grad=False),
        tensor.numpy(),
        tensor.untyped_storage(),
        tensor.numpy().data,
    ]


@pytest.mark.parametrize("index", range(7))
def test_on_release_comes_after_the_last_of_whatever_was_derived(
    store: ObjectStoreWriter, reader: ObjectStoreReader, index: int, no_gc: None
) -> None:
    released: list[int] = []
    handle = store.put("a", record_of(7))
    record = reader.get(handle, on_release=lambda: released.append(1))
    kept = derived(record["pixels"])[index]
    del record
    assert released == []
    del kept
    assert released == [1]


def test_a_copy_is_released_at_once_and_owned(store: ObjectStoreWriter, reader: ObjectStoreReader, no_gc: None) -> None:
    for tensors in ("numpy", "torch"):
        released: list[int] = []
        key = f"of {tensors}"
        handle = store.put(key, record_of(7))
        record = reader.get(handle, tensors=tensors, copy=True, on_release=partial(released.append, 1))
        assert released == [1]
        record["pixels"][:] = 1  # allowed: it is nobody else's
        assert reader.get(handle, tensors="numpy")["pixels"].tolist() == [7] * 900


def test_a_record_without_tensors_is_released_at_once(
    store: ObjectStoreWriter, reader: ObjectStoreReader, no_gc: None
) -> None:
    released: list[int] = []
    record = reader.get(store.put("a", {"n": 1}), on_release=lambda: released.append(1))
    assert record == {"n": 1}
    assert released == [1]


def test_a_failed_get_releases_nothing(store: ObjectStoreWriter, reader: ObjectStoreReader) -> None:
    released: list[int] = []
    handle = store.put("a", {"t": torch.ones(2, dtype=torch.bfloat16)})
    with pytest.raises(InvalidRequest):
        reader.get(handle, tensors="numpy", on_release=lambda: released.append(1))
    store.discard("a")
    with pytest.raises(StaleHandle):
        reader.get(handle, on_release=lambda: released.append(1))
    gc.collect()
    assert released == []


def test_on_release_may_come_in_any_thread(store: ObjectStoreWriter, reader: ObjectStoreReader, no_gc: None) -> None:
    threads: list[threading.Thread] = []
    box = [reader.get(store.put("a", record_of(1)), on_release=lambda: threads.append(threading.current_thread()))]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join(60)
    assert threads == [thread]


def test_views_outlive_both_ends(no_gc: None) -> None:
    released: list[int] = []
    store = ObjectStoreWriter(make_ring(1 << 14))
    reader = ObjectStoreReader(RingReader.open(store.ring.announcement))
    record = reader.get(store.put("a", record_of(9)), on_release=lambda: released.append(1))
    reader.close()
    store.close()
    store.close()
    assert record["pixels"].tolist() == [9] * 900
    del record
    assert released == [1]


def test_what_never_fits_is_refused_before_anything_of_it_is_copied() -> None:
    """A view of one byte that claims to be a tebibyte: making it contiguous would need all of it."""
    with make_ring() as ring, ObjectStoreWriter(ring) as store:
        with pytest.raises(ItemTooLarge):
            store.put("huge", {"small": np.zeros(3), "huge": np.broadcast_to(np.uint8(0), (1 << 40,))})
        with pytest.raises(ItemTooLarge):
            store.put("huge", {"huge": torch.zeros(1).expand(1 << 38)})
        assert ring.stats().puts == 0


class StoreModel(RuleBasedStateMachine):
    """Against a dict. What the store forgets by itself it says through `on_evict`, and that is never a touched key."""

    KEYS: ClassVar[list[str]] = [f"key {index}" for index in range(12)]

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[str, int] = {}
        self.touched: set[str] = set()
        self.store = ObjectStoreWriter(make_ring(4 * 1088, num_slots=6, has_index=True), on_evict=self.evicted)
        self.reader = ObjectStoreReader(RingReader.open(self.store.ring.announcement))
        self.entry = ReaderEntry.attach(self.store.ring.announcement)

    def teardown(self) -> None:
        self.entry.close()
        self.reader.close()
        self.store.close()

    def evicted(self, key: str) -> None:
        assert key not in self.touched
        del self.model[key]

    @rule(key=st.sampled_from(KEYS), value=st.integers(0, 255), num_bytes=st.sampled_from([0, 10, 900, 1800]))
    def put(self, key: str, value: int, num_bytes: int) -> None:
        if key in self.model:
            with pytest.raises(LocalProtocolError):
                self.store.put(key, {})
            return
        before = dict(self.model)
        try:
            self.store.put(key, record_of(value, num_bytes))
        except CacheFull:
            assert self.touched
            assert self.model == before
        else:
            self.model[key] = value

    @rule(key=st.sampled_from(KEYS))
    def touch(self, key: str) -> None:
        self.store.touch(key)
        if key in self.model:
            self.touched.add(key)

    @rule()
    def release_touches(self) -> None:
        self.store.release_touches()
        self.touched.clear()

    @rule(key=st.sampled_from(KEYS))
    def discard(self, key: str) -> None:
        self.store.discard(key)
        self.model.pop(key, None)
        self.touched.discard(key)

    @precondition(lambda self: len(self.model) > 2)
    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.model.clear()
        self.touched.clear()

    @invariant()
    def agrees(self) -> None:
        check_objects(self.store)
        assert len(self.store) == len(self.model)
        for key in self.KEYS:
            handle = self.store.find(key)
            assert (handle is not None) == (key in self.model)
            assert self.reader.reader.look.find(key_digest(key)) == handle
            if handle is not None:
                record = self.reader.get(handle, tensors="numpy")
                assert record["value"] == self.model[key]
                assert set(record["pixels"].tolist()) <= {self.model[key]}


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=examples(25), stateful_step_count=30)
