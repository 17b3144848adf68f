"""The host tier against a dict: first writer wins, quotas, epochs, and what the ring evicts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mmcached.cache.store_keys import about_record, store_key
from mmcached.frontend.connections.rings import late_store_ring
from mmcached.frontend.store import ring_records
from mmcached.frontend.store.record_store import PutRefusal, RecordStore
from mmcached.shm import EncodedRecord, ReaderEntry, RingReader, RingWriter, encode
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.store.codec import decode_record_frames
from mmcached.shm.store.object_store import ObjectStoreWriter
from mmcached.wire.config import GIB, MIB, ServiceConfig
from mmcached.wire.errors import StaleHandle
from mmcached.wire.handle import Handle
from tests.clock import boot_clock
from tests.frontend.integrity import check_records
from tests.house.drawing import examples
from tests.present import present
from tests.shm.rings import Taking, attached, make_ring, reading

EPOCH = 1000
ROOM = 10 * 1088
"""For about ten records of 900 bytes."""


def encoded(value: int, num_bytes: int = 900) -> EncodedRecord:
    return encode({"value": value, "pixels": np.full(num_bytes, value, np.uint8)})


CHUNK = ObjectStoreWriter.chunk_bytes(store_key("tenant", "a"), encoded(0))


def make_tier(data_bytes: int = ROOM, *, quota: int | None = None, max_object_bytes: int = 5000) -> RecordStore:
    ring = make_ring(data_bytes, max_object_bytes=max_object_bytes, has_index=True)
    store = RecordStore(first_epoch=EPOCH, tenant_quota_bytes=quota)
    store.adopt(ring)
    return store


def value_at(tier: RecordStore, handle: Handle) -> int:
    record = decode_record_frames(tier.in_ring.frames(handle), tensors="numpy")
    assert set(record["pixels"].tolist()) <= {record["value"]}
    return int(record["value"])


def value_of(tier: RecordStore, key: str, tenant: str = "") -> int | None:
    handle = tier.get(tenant, key)
    return None if handle is None else value_at(tier, handle)


def new_ring(config: ServiceConfig) -> RingWriter:
    return present(late_store_ring(config, None).take(0.0))


@pytest.fixture
def tier() -> Iterator[RecordStore]:
    with make_tier() as made:
        yield made


def test_a_record_without_its_names_is_not_adopted() -> None:
    ring = make_ring(ROOM, has_index=True)
    former = ObjectStoreWriter(ring)
    for key, about in ((store_key("a", "k"), about_record("a", "k", 1)), (store_key("b", "k"), b"b")):
        former.put_encoded(key, encoded(1), about)
    with RecordStore(first_epoch=EPOCH) as tier:
        tier.adopt(ring)
        assert (tier.has("a", "k"), tier.has("b", "k")) == (True, False)


def test_a_successor_knows_what_records_cost() -> None:
    ring = make_ring(ROOM, has_index=True)
    former = ObjectStoreWriter(ring)
    former.put_encoded(store_key("a", "k"), encoded(1), about_record("a", "k", 1, 0.25))
    with RecordStore(first_epoch=EPOCH) as tier:
        tier.adopt(ring)
        for counts in (True, False, True):
            tier.get("a", "k", counts=counts)
        assert tier.saved.stats().other_us == 500_000
        tier.put("a", "k", encoded(2), epoch=EPOCH, overwrites=True, cost_s=2.0)
        assert tier.saved.cost_s(store_key("a", "k")) == 2.0
        tier.drop("a", "k")
        assert tier.saved.cost_s(store_key("a", "k")) == 0.0


def test_put_then_get(tier: RecordStore) -> None:
    assert tier.put("", "a", encoded(3), epoch=EPOCH) is None
    assert value_of(tier, "a") == 3
    assert value_of(tier, "b") is None
    assert (tier.has("", "a"), tier.has("", "b")) == (True, False)
    assert (tier.num_queries, tier.num_hits, tier.num_puts) == (2, 1, 1)


def test_the_last_writer_wins_if_it_says_so(tier: RecordStore) -> None:
    for value in (1, 2):
        assert tier.put("", "a", encoded(value), epoch=EPOCH, overwrites=True) is None
        assert value_of(tier, "a") == value
    assert tier.put("", "a", encoded(3), epoch=EPOCH) is None
    assert value_of(tier, "a") == 2
    for refused, epoch in ((encoded(4, 6000), EPOCH), (encoded(4), EPOCH - 1)):
        assert tier.put("", "a", refused, epoch=epoch, overwrites=True) is not None
        assert value_of(tier, "a") == 2
    assert (len(tier), tier.num_puts, tier.num_refusals) == (1, 3, 2)


def test_a_record_that_was_fetched_and_replaced_is_this_hosts(tier: RecordStore) -> None:
    tier.put("", "a", encoded(1), epoch=EPOCH, is_fetched=True)
    tier.put("", "a", encoded(2), epoch=EPOCH, overwrites=True)
    tier.in_ring.drop_fetched()
    assert value_of(tier, "a") == 2


def test_a_record_expires_for_all_that_is_asked(tier: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = boot_clock(monkeypatch)
    for key in ("get", "has", "find", "drop", "put"):
        assert tier.put("t", key, encoded(1), epoch=EPOCH, ttl_s=5.0) is None
    tier.put("t", "stays", encoded(1), epoch=EPOCH)
    clock.now += 4.9
    assert value_of(tier, "get", "t") == 1
    assert tier.put("t", "put", encoded(2), epoch=EPOCH, ttl_s=50.0) is None, "the key keeps its record, and its expiry"
    clock.now += 0.1
    assert (tier.get("t", "get"), tier.has("t", "has"), tier.find("t", "find")) == (None, False, None)
    assert tier.drop("t", "drop") is False
    assert tier.put("t", "put", encoded(3), epoch=EPOCH) is None
    clock.now += 100
    assert value_of(tier, "put", "t") == 3
    assert (len(tier), tier.in_ring.num_expired) == (2, 5)


def test_who_overwrites_says_anew_when_it_expires(tier: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = boot_clock(monkeypatch)
    for value, ttl_s in enumerate([5.0, 0.0, 1.0]):
        tier.put("", "a", encoded(value), epoch=EPOCH, overwrites=True, ttl_s=ttl_s)
        clock.now += 0.9
        assert value_of(tier, "a") == value
    clock.now += 0.1
    assert value_of(tier, "a") is None


def test_the_room_of_expired_records_is_given_back_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = boot_clock(monkeypatch)
    monkeypatch.setattr(ring_records, "EXPIRED_AT_ONCE", 3)
    with make_tier(20 * CHUNK, quota=12 * CHUNK) as tier:
        for number in range(8):
            tier.put("t", str(number), encoded(number), epoch=EPOCH, ttl_s=1.0 if number < 7 else 0.0)
        clock.now += 1
        left = []
        for _ in range(4):
            tier.in_ring.drop_expired()
            left.append((len(tier), tier.in_ring.num_expired))
        assert left == [(5, 3), (2, 6), (1, 7), (1, 7)]
        assert tier.ring.stats().used_bytes == CHUNK


def test_a_record_is_replaced_within_its_tenants_quota() -> None:
    with make_tier(20 * CHUNK, quota=3 * CHUNK) as tier:
        for key in "abc":
            tier.put("t", key, encoded(1), epoch=EPOCH)
        assert tier.put("t", "a", encoded(2), epoch=EPOCH, overwrites=True) is None
        assert [key for key in "abc" if tier.has("t", key)] == [*"abc"], "the former one counts no more"
        assert tier.put("t", "b", encoded(3, CHUNK + 900), epoch=EPOCH, overwrites=True) is None
        assert value_of(tier, "b", "t") == 3
        assert len(tier) == 2
        assert tier.put("t", "b", encoded(4, 3 * CHUNK), epoch=EPOCH, overwrites=True) is PutRefusal.BEYOND_TENANT_QUOTA
        assert value_of(tier, "b", "t") == 3
        assert tier.put("t", "b", encoded(5, 2 * CHUNK), epoch=EPOCH, overwrites=True) is None
        assert (len(tier), value_of(tier, "b", "t")) == (1, 5)


def test_the_shared_index_shows_what_is_there(tier: RecordStore) -> None:
    assert isinstance(tier.ring, RingWriter)
    with reading(tier.ring) as reader:
        tier.put("t", "a", encoded(1), epoch=EPOCH)
        assert reader.look.find(key_digest(store_key("t", "a")))
        assert not reader.look.find(key_digest(store_key("", "a")))
        tier.drop("t", "a")
        assert not reader.look.find(key_digest(store_key("t", "a")))


def test_what_is_refused_says_why_and_changes_nothing(tier: RecordStore) -> None:
    tier.put("", "a", encoded(1), epoch=EPOCH)
    assert tier.put("", "b", encoded(2, 5000), epoch=EPOCH) is PutRefusal.TOO_LARGE
    assert tier.put("", "b", encoded(2), epoch=EPOCH - 1) is PutRefusal.OLD_EPOCH
    assert tier.put("", "a", encoded(2), epoch=EPOCH - 1) is PutRefusal.OLD_EPOCH
    assert isinstance(tier.ring, RingWriter)
    with attached(tier.ring) as entry:
        handles = []
        for index in range(10):  # leased, so they stay
            tier.put("", f"more {index}", encoded(index), epoch=EPOCH)
            found = present(tier.get("", f"more {index}"))
            assert is_taken(tier, entry, found)
            handles.append(found)
        assert tier.put("", "b", encoded(2), epoch=EPOCH) is PutRefusal.FULL
        for handle in handles:
            entry.give_back(handle)
    assert tier.put("", "b", encoded(2), epoch=EPOCH) is None
    assert tier.num_refusals == 4


def test_what_was_got_of_late_has_another_chance(tier: RecordStore) -> None:
    tier.put("", "hot", encoded(1), epoch=EPOCH)
    for index in range(40):
        tier.get("", "hot")
        tier.put("", f"cold {index}", encoded(2), epoch=EPOCH)
    assert tier.has("", "hot")
    assert not tier.has("", "cold 0")


@pytest.mark.parametrize("quota", [None, MIB])
def test_a_clip_as_large_as_the_store_leaves_what_is_used(quota: int | None) -> None:
    own = [f"image {index}" for index in range(60)]
    with make_tier(MIB if quota is None else 4 * MIB, quota=quota, max_object_bytes=MIB // 4) as tier:
        for _ in range(3):
            for index, key in enumerate(own):
                if tier.get("", key) is None:
                    tier.put("", key, encoded(index, 15_000), epoch=EPOCH)
        for index in range(16):
            tier.put("", f"slice {index}", encoded(index, 60_000), epoch=EPOCH)
            tier.put("", f"name {index}", encoded(index, 100), epoch=EPOCH)
        assert sum(tier.has("", key) for key in own) > (50 if quota is None else 40)


def test_over_its_quota_a_tenant_loses_its_own_oldest() -> None:
    with make_tier(20 * CHUNK, quota=3 * CHUNK) as tier:
        tier.put("other", "x", encoded(9), epoch=EPOCH)
        for key in "abc":
            tier.put("t", key, encoded(1), epoch=EPOCH)
        tier.get("t", "a")
        tier.put("t", "d", encoded(1), epoch=EPOCH)
        assert [key for key in "abcd" if tier.has("t", key)] == ["a", "c", "d"]
        tier.put("t", "e", encoded(1, 2 * CHUNK), epoch=EPOCH)
        assert [key for key in "abcde" if tier.has("t", key)] == ["e"]
        assert tier.has("other", "x")
        assert tier.in_ring.num_quota_evictions == 4
        assert tier.put("t", "f", encoded(1, 3 * CHUNK), epoch=EPOCH) is PutRefusal.BEYOND_TENANT_QUOTA
        assert tier.has("t", "e"), "what never fits costs nothing"


def test_what_is_too_large_costs_its_tenant_nothing() -> None:
    with make_tier(20 * CHUNK, quota=3 * CHUNK, max_object_bytes=CHUNK) as tier:
        for key in "abc":
            tier.put("t", key, encoded(1), epoch=EPOCH)
        assert tier.put("t", "d", encoded(1, 2 * CHUNK), epoch=EPOCH) is PutRefusal.TOO_LARGE
        assert [key for key in "abcd" if tier.has("t", key)] == ["a", "b", "c"]


def test_a_new_epoch_forgets_and_keeps_nothing_of_before(tier: RecordStore) -> None:
    tier.put("", "a", encoded(1), epoch=EPOCH)
    handle = tier.get("", "a")
    tier.begin_epoch()
    assert (tier.epoch, tier.num_epochs) == (EPOCH + 1, 1)
    assert value_of(tier, "a") is None
    assert tier.put("", "a", encoded(1), epoch=EPOCH) is PutRefusal.OLD_EPOCH
    assert tier.put("", "a", encoded(2), epoch=tier.epoch) is None
    assert value_of(tier, "a") == 2
    assert handle is not None
    with pytest.raises(StaleHandle):
        tier.in_ring.frames(handle)


def test_without_a_ring_nothing_is_kept() -> None:
    with RecordStore(first_epoch=EPOCH) as tier:
        assert tier.put("", "a", encoded(1), epoch=EPOCH) is PutRefusal.NO_STORE
        assert (tier.get("", "a"), tier.find("", "a")) == (None, None)
        assert not tier.has("", "a")
        assert not tier.drop("", "a")
        tier.begin_epoch()
        assert tier.ring.stats().data_bytes == 0


def test_the_configuration_decides_sizes_and_quotas() -> None:
    with RecordStore.from_config(ServiceConfig(store_gb=0, mm_processor_cache_gb=0)) as tier:
        assert late_store_ring(ServiceConfig(store_gb=0, mm_processor_cache_gb=0), None).take(0) is None
        first_epoch = tier.epoch
    config = ServiceConfig(
        store_gb=MIB / GIB, store_num_slots=16, store_max_clients=5, store_tenant_quota_gb=4096 / GIB, world_size=0
    )
    with RecordStore.from_config(config) as tier:
        assert tier.put("", "a", encoded(1), epoch=tier.epoch) is PutRefusal.NO_STORE
        tier.adopt(new_ring(config))
        assert isinstance(tier.ring, RingWriter)
        names = tier.ring.announcement
        assert (names.data_bytes, names.num_slots, names.max_readers) == (MIB, 16, 5)
        assert names.index_words >= 32
        assert tier.epoch > first_epoch, "an epoch of a former frontend is never the present one"
        assert tier.put("", "a", encoded(1, 4096), epoch=tier.epoch) is PutRefusal.BEYOND_TENANT_QUOTA


def test_items_have_room_of_their_own_in_the_ring_and_engines_and_workers_entries() -> None:
    config = ServiceConfig(
        store_gb=MIB / GIB,
        store_num_slots=16,
        store_max_clients=5,
        mm_processor_cache_gb=3 * MIB / GIB,
        ring_num_slots=8,
        world_size=2,
        data_parallel_size=3,
    )
    with new_ring(config) as ring:
        names = ring.announcement
        assert (names.data_bytes, names.num_slots, names.max_readers) == (4 * MIB, 24, 5 + 3 * 3)


def test_however_many_hold_views_half_of_the_store_stays_free_for_puts() -> None:
    config = ServiceConfig(store_gb=4 * MIB / GIB, store_num_slots=256, store_max_clients=6, world_size=0)
    with RecordStore.from_config(config) as tier, contextlib.ExitStack() as stack:
        tier.adopt(new_ring(config))
        assert isinstance(tier.ring, RingWriter)
        handles = []
        for index in range(120):
            tier.put("", str(index), encoded(index, 32_000), epoch=tier.epoch)
            handles.append(tier.find("", str(index)))
        held = []
        for number in range(5):  # each views as much as it may, and never gives back
            entry = stack.enter_context(ReaderEntry.attach(tier.ring.announcement))
            look = stack.enter_context(reading(tier.ring)).look
            assert tier.ring.readers.attach(entry.reader_id, entry.incarnation)
            for handle in handles[24 * number :]:
                if handle is not None and look.may_hold(entry.taken_bytes + handle.nbytes):
                    assert entry.take_leases([Taking(handle)], look) == [True]
                    tier.poll_hits()
            held.append(entry.taken_bytes)
        assert held == sorted(held, reverse=True)
        assert held[0] >= 0.9 * MIB, "one alone gets a quarter"
        assert held[1] > 0
        assert tier.ring.stats().pinned_bytes <= 2.1 * MIB
        kept = [tier.put("", f"honest {index}", encoded(1, 32_000), epoch=tier.epoch) for index in range(20)]
        assert kept == [None] * 20
        assert all(tier.has("", f"honest {index}") for index in range(20))


def is_taken(tier: RecordStore, entry: ReaderEntry, handle: Handle) -> bool:
    """Take a lease, and return whether it holds."""
    assert isinstance(tier.ring, RingWriter)
    with RingReader.open(tier.ring.announcement) as reader:
        return all(entry.take_leases([Taking(handle)], reader.look))


class TierModel(RuleBasedStateMachine):
    """A dict says which value each key must have; what the ring evicts goes from it, and the ring counts that."""

    TENANTS = ("", "one", "two")
    KEYS = ("a", "b", "c", "d", "e")
    QUOTA = 4 * CHUNK

    def __init__(self) -> None:
        super().__init__()
        self.tier = make_tier(8 * CHUNK, quota=self.QUOTA)
        self.model: dict[tuple[str, str], tuple[int, int]] = {}  # value and bytes, the least recently used first
        self.epoch = EPOCH

    def teardown(self) -> None:
        self.tier.close()

    def taken_by(self, tenant: str) -> int:
        return sum(size for (owner, _), (_, size) in self.model.items() if owner == tenant)

    @rule(
        name=st.tuples(st.sampled_from(TENANTS), st.sampled_from(KEYS)),
        value=st.integers(0, 255),
        num_bytes=st.sampled_from([0, 900, 2 * CHUNK, 4 * CHUNK]),
        age=st.sampled_from([0, 0, 0, 1]),
        overwrites=st.booleans(),
    )
    def put(self, name: tuple[str, str], value: int, num_bytes: int, age: int, overwrites: bool) -> None:
        tenant, key = name
        record = encoded(value, num_bytes)
        size = ObjectStoreWriter.chunk_bytes(store_key(tenant, key), record)
        evictions = self.tier.ring.stats().evictions
        refusal = self.tier.put(tenant, key, record, epoch=self.epoch - age, overwrites=overwrites)
        former = self.model.get((tenant, key))
        if age:
            assert refusal is PutRefusal.OLD_EPOCH
        elif former and not overwrites:
            assert refusal is None
        elif size > self.QUOTA:
            assert refusal is PutRefusal.BEYOND_TENANT_QUOTA
        else:
            if former:  # the two are not always to be had beside each other
                assert refusal in (None, PutRefusal.FULL)
                self.model.pop((tenant, key))
            else:
                assert refusal is None, "nothing is leased, so there is room"
            while self.taken_by(tenant) + size > self.QUOTA:
                del self.model[next(name for name in self.model if name[0] == tenant)]
            lost = [name for name in self.model if not self.tier.has(*name)]
            if refusal and former:
                self.model[tenant, key] = former
                assert not lost
                return
            assert len(lost) == self.tier.ring.stats().evictions - evictions, "nobody else's for a quota"
            for former_name in lost:
                del self.model[former_name]
            self.model[tenant, key] = (value, size)

    @rule(tenant=st.sampled_from(TENANTS), key=st.sampled_from(KEYS))
    def get(self, tenant: str, key: str) -> None:
        found = value_of(self.tier, key, tenant)
        if (tenant, key) not in self.model:
            assert found is None
            return
        self.model[tenant, key] = entry = self.model.pop((tenant, key))
        assert found == entry[0]

    @rule(tenant=st.sampled_from(TENANTS), key=st.sampled_from(KEYS))
    def drop(self, tenant: str, key: str) -> None:
        assert self.tier.drop(tenant, key) == ((tenant, key) in self.model)
        self.model.pop((tenant, key), None)

    @rule(is_new_epoch=st.booleans())
    def flush(self, is_new_epoch: bool) -> None:
        if is_new_epoch:
            self.tier.begin_epoch()
            self.epoch += 1
        else:
            self.tier.clear()
        self.model.clear()

    @invariant()
    def agrees(self) -> None:
        check_records(self.tier)
        names = {(tenant, key) for tenant in self.TENANTS for key in self.KEYS if self.tier.has(tenant, key)}
        assert names == self.model.keys()


TestTierModel = TierModel.TestCase
TestTierModel.settings = settings(max_examples=examples(25), stateful_step_count=30)
