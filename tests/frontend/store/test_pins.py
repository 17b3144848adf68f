"""Pinned records: what eviction and quotas spare, what ends a pin, and the limits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mmcached.cache.store_keys import ITEMS_TENANT
from mmcached.frontend.store import pin_service
from mmcached.frontend.store.pin_table import PinTable
from mmcached.shm import encode
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.fetch_stats import PinStats
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import frontend as to_frontend
from tests.clock import Clock
from tests.frontend.fake_peers import Bench, FakeClient
from tests.frontend.integrity import check_frontend
from tests.frontend.store.test_nursery_service import Layer
from tests.frontend.store.test_second_level import error_of, flush, store_stats

STORE_BYTES, QUOTA_BYTES = 1 << 24, 1 << 23
CONFIG = ServiceConfig(
    mm_processor_cache_gb=0,
    store_gb=STORE_BYTES / GIB,
    store_tenant_quota_gb=QUOTA_BYTES / GIB,
    store_nursery_share=0.5,
    limits=LimitsConfig(max_nurseries=2),
)
NUM_BYTES = 50_000
"""Less than a record of a nursery has."""
FEW, MANY = 16, 2 * STORE_BYTES // NUM_BYTES


def record_of(number: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    return {"x": np.full(NUM_BYTES, number % 251, np.uint8)}


@pytest.fixture
def ann(bench: Bench) -> Iterator[FakeClient]:
    client = bench.connect_client()
    yield client
    check_frontend(bench.frontend)


def send(client: FakeClient, *keys: str, ttl_s: float = 60.0, tenant: str = "") -> None:
    client.channel.send(to_frontend.PinRecords(7, list(keys), ttl_s, tenant))


def pin(client: FakeClient, *keys: str, ttl_s: float = 60.0, tenant: str = "") -> list[bool]:
    send(client, *keys, ttl_s=ttl_s, tenant=tenant)
    answer = client.answer(to_client.Present)
    assert answer.request_id == 7
    return answer.are_present


def unpin(client: FakeClient, *keys: str, tenant: str = "") -> list[bool]:
    return pin(client, *keys, ttl_s=0.0, tenant=tenant)


def refused(client: FakeClient, *keys: str, tenant: str = "") -> str:
    send(client, *keys, tenant=tenant)
    error = error_of(client.answer(to_client.Failed))
    assert isinstance(error, InvalidRequest)
    return str(error)


def fill(client: FakeClient, prefix: str, number: int = MANY, tenant: str = "", *, is_read: bool = False) -> list[str]:
    """Put records that no client asks for, unless they are read."""
    keys = [f"{prefix}{index}" for index in range(number)]
    for index, key in enumerate(keys):
        answer = client.put(key, record_of(index), tenant=tenant)
        assert answer.is_stored, answer
        if is_read:
            client.read(client.get(key, tenant=tenant))
    return keys


def present(bench: Bench, *keys: str, tenant: str = "") -> list[bool]:
    return [bench.frontend.store.records.has(tenant, key) for key in keys]


def pins(bench: Bench) -> int:
    return store_stats(bench).pins.records


def let_pass(bench: Bench, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    bench.frontend.store.check(clock.now)


@pytest.mark.parametrize("tenants", [("",), ("", "b", "c", "d")], ids=["beyond the quota", "beyond the store"])
def test_a_full_store_evicts_what_is_not_pinned(bench: Bench, ann: FakeClient, tenants: tuple[str, ...]) -> None:
    keys = fill(ann, "k", FEW)
    assert pin(ann, *keys[::2], "none") == [True] * (FEW // 2) + [False]
    for tenant in tenants:
        fill(ann, "other", tenant=tenant)
        fill(ann, "read", tenant=tenant, is_read=True)
    assert present(bench, *keys) == [True, False] * (FEW // 2)
    stats = store_stats(bench)
    assert stats.pins.records == FEW // 2
    assert stats.pins.bytes >= FEW // 2 * NUM_BYTES
    assert stats.ring.pinned_bytes >= stats.pins.bytes
    assert stats.refusals == 0
    assert unpin(ann, *keys) == [True, False] * (FEW // 2)
    assert store_stats(bench).pins == PinStats()
    assert store_stats(bench).ring.pinned_bytes == 0
    for tenant in tenants:
        fill(ann, "again", tenant=tenant, is_read=True)
    assert not any(present(bench, *keys))


def test_a_pin_ends_with_its_time_and_a_longer_one_counts(bench: Bench, ann: FakeClient, clock: Clock) -> None:
    a, b = fill(ann, "k", 2)
    pin(ann, a, b, ttl_s=10.0)
    pin(bench.connect_client(), b, ttl_s=20.0)
    pin(ann, b, ttl_s=1.0)
    for seconds, number in ((9.0, 2), (2.0, 1), (8.0, 1), (2.0, 0)):
        let_pass(bench, clock, seconds)
        assert pins(bench) == number
    assert present(bench, a, b) == [True, True]


def test_the_death_of_its_client_does_not_end_a_pin(bench: Bench, ann: FakeClient, clock: Clock) -> None:
    eve = bench.connect_client()
    (key,) = fill(ann, "k", 1)
    pin(eve, key)
    bench.clients.remove(eve)
    eve.close()
    let_pass(bench, clock, 30.0)
    fill(ann, "other")
    assert present(bench, key) == [True]
    let_pass(bench, clock, 31.0)
    assert pins(bench) == 0


def test_pins_end_with_their_records(bench: Bench, ann: FakeClient) -> None:
    keys = fill(ann, "k", 2)
    pin(ann, *keys)
    ann.channel.send(to_frontend.DropRecord(9, keys[0]))
    ann.answer(to_client.Stored)
    assert pins(bench) == 1
    flush(bench)
    bench.answer(to_client.Flushed)
    assert store_stats(bench).pins == PinStats()
    assert unpin(ann, *keys) == [False, False]
    fill(ann, "k", 2)
    fill(ann, "other")
    assert present(bench, *keys) == [False, False], "the next records of these keys are not pinned"


def test_a_record_that_is_replaced_is_not_pinned(bench: Bench, ann: FakeClient) -> None:
    (key,) = fill(ann, "k", 1)
    pin(ann, key)
    epoch = bench.frontend.store.records.epoch
    ann.channel.send(
        to_frontend.PutRecord(ann.client_id, 9, key, epoch, overwrites=True), encode(record_of(2)).frames()
    )
    assert ann.answer(to_client.Stored).is_stored
    assert pins(bench) == 0


def test_a_tenant_pins_its_own_records(bench: Bench, ann: FakeClient) -> None:
    (key,) = fill(ann, "k", 1, tenant="a")
    assert pin(ann, key) == [False]
    assert pin(ann, key, key, tenant="a") == [True, True]
    assert unpin(ann, key) == [False]
    assert pins(bench) == 1
    send(ann, key, tenant=ITEMS_TENANT)
    assert ann.answer(to_client.Failed).error.code == "invalid_request"


def test_pinned_bytes_have_limits(bench: Bench, ann: FakeClient) -> None:
    quarter = QUOTA_BYTES // 4 // NUM_BYTES
    for tenant in ("a", "b", "c"):
        keys = fill(ann, "k", quarter + 4, tenant=tenant)
        if tenant != "c":
            fitting = keys[: quarter - 2]
            assert all(pin(ann, *fitting, tenant=tenant))
            before = store_stats(bench).pins
            reason = refused(ann, *keys, tenant=tenant)
            assert reason.startswith("pinned bytes of this tenant = ")
            assert f"at most {QUOTA_BYTES // 4}" in reason
            assert store_stats(bench).pins == before
        else:
            reason = refused(ann, *keys[: quarter - 2], tenant=tenant)
            assert reason.startswith("pinned bytes = ")
            assert f"at most {STORE_BYTES // 4}" in reason
    assert all(pin(ann, *fitting, tenant="b")), "those that are pinned do not count again"


def test_the_number_of_pins_has_a_limit(bench: Bench, ann: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin_service, "MAX_PINS", 2)
    keys = fill(ann, "k", 3)
    assert refused(ann, *keys).startswith("pinned records = 3: at most 2 ")
    assert pins(bench) == 0
    assert pin(ann, *keys[:2]) == [True, True]


def test_a_record_too_large_beside_the_pinned_ones_is_refused_and_evicts_nothing(bench: Bench, ann: FakeClient) -> None:
    keys = fill(ann, "k", QUOTA_BYTES // 4 // NUM_BYTES - 2)
    others = fill(ann, "other", 4)
    pin(ann, *keys)
    table = bench.frontend.store.records.in_ring.pins
    table._tenant_to_bytes[""] += QUOTA_BYTES  # as if the quota had been smaller
    answer = ann.put("large", record_of(1))
    assert not answer.is_stored
    assert "pinned records" in answer.reason
    assert all(present(bench, *keys, *others))
    table._tenant_to_bytes[""] -= QUOTA_BYTES


def test_a_copy_into_the_ring_takes_the_pin_along(bench: Bench, ann: FakeClient) -> None:
    layer = Layer(bench)
    layer.open()
    assert layer.put("placed", layer.lay("placed")).is_stored
    in_ring = bench.frontend.store.records.in_ring
    (name,) = in_ring.objects._key_to_handle  # type: ignore[union-attr]
    assert in_ring.lies_in_nursery(name)
    pin(ann, "placed")
    copies = bench.frontend.store.nurseries.copies
    handle = in_ring.find(name)
    assert handle is not None
    assert not in_ring.evict(handle)
    assert bench.frontend.store.nurseries._make_room(None), "a pinned record does not keep the place in its nursery"
    assert copies.is_open
    while copies.is_open:
        copies.step()
    assert not in_ring.lies_in_nursery(name)
    fill(ann, "other")
    assert present(bench, "placed") == [True]
    assert unpin(ann, "placed") == [True]
    assert store_stats(bench).ring.pinned_bytes == 0
    layer.close()


def test_the_table_knows_the_next_end_of_a_pin() -> None:
    table = PinTable()
    for number in (3, 1, 2):
        assert table.add(f"{number}", "t", 10, deadline=float(number))
    assert not table.add("1", "t", 10, deadline=4.0)
    assert (table.num_bytes, table.bytes_of("t"), table.bytes_of("t", but="1")) == (30, 30, 20)
    ended: list[list[str]] = []
    for now in (0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 5.0):
        due = table.overdue(now)
        for name in due:
            assert table.remove(name)
        ended.append(due)
    assert ended == [[], [], ["2"], ["3"], [], ["1"], []]
    assert (len(table), table.num_bytes, table.bytes_of("t")) == (0, 0, 0)
