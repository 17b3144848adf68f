"""What a new host fetches because others have found it last: real frontends, and their second levels in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mmcached.cache.store_keys import NAMES_TENANT, store_key
from mmcached.client import Client
from mmcached.frontend.store import warm_up
from mmcached.second_level.name_lists import NUM_PLACES, place_name
from mmcached.second_level.process import SecondLevelProcess
from mmcached.second_level.shared_records import SharedRecords
from mmcached.wire.errors import InvalidRequest
from tests.client.records import is_equal, numbers
from tests.integration.processes import eventually
from tests.second_level.frontends import Fleet
from tests.second_level.plain_server import PlainBackend

NUM = 20


@pytest.fixture
def fleet(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(warm_up, "TELL_INTERVAL_S", 0.1)
    with Fleet(run_dir) as fleet:
        yield fleet


def found_by(client: Client, level: SecondLevelProcess, prefix: str) -> list[str]:
    """Have a host compute records, and find each once; return their keys once the server has them."""
    keys = [f"{prefix} {number}" for number in range(NUM)]
    for number, key in enumerate(keys):
        client.put(key, numbers(number))
    eventually(lambda: level.stats().puts_kept, lambda count: count >= NUM, "all saves")
    assert all(client.get(key) is not None for key in keys)
    return keys


def names_of(keys: list[str]) -> set[str]:
    return {store_key("t", key) for key in keys}


def told(fleet: Fleet, client: Client, keys: list[str]) -> set[str]:
    """Have a host find records, and return the names on all lists that the server has; single hits may be lost."""
    assert all(client.get(key) is not None for key in keys)
    with SharedRecords(PlainBackend(fleet.server), max_bytes=1 << 20, ttl_s=60.0) as records:
        found = records.get_many([place_name(number) for number in range(NUM_PLACES)], deadline=1e9)
    packed = b"".join(bytes(piece) for each in found for piece in getattr(each, "pieces", ()))
    return {packed[at : at + 32].hex() for at in range(0, len(packed), 32)}


def warmed(client: Client) -> int:
    return client.stats().store.fetches.warmed


def test_a_new_host_has_what_another_has_found_last(fleet: Fleet) -> None:
    ann, of_ann = fleet.host("a", store_warm_up=True)
    keys = found_by(ann, of_ann, "k")
    eventually(lambda: told(fleet, ann, keys), names_of(keys).__eq__, "the list")
    bob, of_bob = fleet.host("b", store_warm_up=True)
    eventually(lambda: warmed(bob), lambda count: count == NUM, "all records")
    assert of_bob.stats().gets_hit == NUM
    for number, key in enumerate(keys):
        hit = bob.get(key, local=True, tensors="numpy")
        assert hit is not None
        assert is_equal(hit.record, numbers(number))
    assert bob.put(keys[0], numbers(77), overwrite=True), "by the tenant that its key has"
    hit = bob.get(keys[0], tensors="numpy")
    assert hit is not None
    assert is_equal(hit.record, numbers(77))
    assert bob.drop(keys[1])
    assert bob.get(keys[1]) is None


def test_no_more_is_fetched_than_a_share_of_the_store(fleet: Fleet) -> None:
    ann, _ = fleet.host("a", store_warm_up=True)
    keys = [f"large {number}" for number in range(40)]
    for number, key in enumerate(keys):
        ann.put(key, np.full(1 << 18, number, np.uint8))
        assert ann.get(key) is not None
    eventually(lambda: told(fleet, ann, keys), names_of(keys).__eq__, "the list")
    bob, _ = fleet.host("b", store_warm_up=True, store_gb=8 / 1024)
    eventually(lambda: warmed(bob), lambda count: count >= 8, "a quarter of 8 MiB")
    eventually(lambda: bob.stats().store.prefetches, lambda stats: not stats.open, "the end of all")
    assert warmed(bob) <= 8 + warm_up.MAX_OPEN


def test_a_quota_of_a_tenant_leaves_what_a_warm_up_has_fetched(fleet: Fleet) -> None:
    ann, _ = fleet.host("a", store_warm_up=True)
    keys = [f"large {number}" for number in range(NUM)]
    for number, key in enumerate(keys):
        ann.put(key, np.full(1 << 18, number, np.uint8))
        assert ann.get(key) is not None
    eventually(lambda: told(fleet, ann, keys), names_of(keys).__eq__, "the list")
    bob, _ = fleet.host("b", store_warm_up=True, store_tenant_quota_gb=2 / 1024)
    eventually(lambda: warmed(bob), lambda count: count == NUM, "all records")
    assert all(bob.contains_many(keys)), "it is of several tenants, and has a share of its own"
    with pytest.raises(InvalidRequest, match="quarter of a tenant's quota"):
        bob.pin(keys, ttl_s=60.0)
    assert all(bob.pin(keys[:1], ttl_s=60.0))
    with pytest.raises(InvalidRequest, match="quarter of a tenant's quota"):
        bob.pin(keys[1:2], ttl_s=60.0)


def test_without_the_option_nothing_is_told_or_fetched(fleet: Fleet) -> None:
    (ann, of_ann), (bob, of_bob) = fleet.host("a", store_warm_up=True), fleet.host("b")
    found_by(bob, of_bob, "of bob")
    keys = found_by(ann, of_ann, "k")
    eventually(lambda: told(fleet, ann, keys), names_of(keys).__eq__, "the list, and no other")
    assert warmed(bob) == 0
    assert not any(bob.contains_many(keys))


@pytest.mark.parametrize("packed", [b"", b"x", b"\0" * 32, b"\0" * 33, b"\0" * (1 << 16)])
def test_a_list_of_another_form_is_ignored(fleet: Fleet, packed: bytes) -> None:
    with SharedRecords(PlainBackend(fleet.server), max_bytes=1 << 20, ttl_s=60.0) as records:
        for number in range(NUM_PLACES - 2):
            records.save(place_name(number), [packed], deadline=1e9)
        fleet.server.values[records.scope_of("").name(place_name(NUM_PLACES - 1))] = b"foreign"
    bob, of_bob = fleet.host("b", store_warm_up=True)
    found_by(bob, of_bob, "k")
    eventually(lambda: bob.stats().store.prefetches, lambda stats: not stats.open, "the end of all")
    assert warmed(bob) == 0
    assert of_bob.stats().faults == 0


def test_after_a_flush_the_next_list_counts(fleet: Fleet) -> None:
    (ann, of_ann), (bob, _) = fleet.host("a", store_warm_up=True), fleet.host("b", store_warm_up=True)
    for client in (ann, bob):
        client.invalidate()
    keys = found_by(ann, of_ann, "k")
    eventually(lambda: told(fleet, ann, keys), names_of(keys).issubset, "the list")
    carl, _ = fleet.host("c", store_warm_up=True)
    eventually(lambda: warmed(carl), lambda count: count == NUM, "all records")


def test_no_client_puts_under_the_tenant_of_names(fleet: Fleet, run_dir: Path) -> None:
    fleet.host("a")
    with Client(run_dir / "a", tenant=NAMES_TENANT, fail_open=False) as client:
        assert not client.put(store_key("t", "k"), numbers(1))
