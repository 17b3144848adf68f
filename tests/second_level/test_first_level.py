"""The second level as a client: what it is lent costs nobody anything, and what it puts is judged like anybody's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from mmcached.client import Client
from mmcached.client.store import nursery
from mmcached.second_level.first_level import FirstLevel
from mmcached.shm import encode
from mmcached.shm.store.codec import EncodedRecord, adopt, decode
from mmcached.wire.errors import MmcachedError, RemoteProtocolError, ServiceUnavailable
from mmcached.wire.handle import Handle
from mmcached.wire.messages.parts import MIN_PLACED_BYTES, NurseryPlace
from mmcached.wire.messages.second_level import Orders, Save, TakeOrders
from mmcached.wire.paths import RunDir
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService, fake_service
from tests.client.store.at_once import AtOnce
from tests.integration.processes import DEADLINE_S, eventually
from tests.present import present

EPOCH_0 = 1


@pytest.fixture
def service(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir) as service:
        yield service


@pytest.fixture
def first(service: StoreService, run_dir: Path) -> Iterator[FirstLevel]:
    with FirstLevel(RunDir(run_dir)) as first:
        yield first


@pytest.fixture
def client(service: StoreService, run_dir: Path) -> Iterator[Client]:
    with Client(run_dir) as client:
        yield client


def encoded(record: dict[str, object]) -> EncodedRecord:
    """Return a record as it comes from a server: one buffer."""
    made = encode(record)
    buffer = np.empty(made.nbytes, np.uint8)
    made.write_into(buffer)
    return adopt(buffer)


def place_of(service: StoreService, key: str, tenant: str = "") -> Handle:
    found: list[Handle | None] = []
    service.call(lambda: found.append(service.desk.records.find(tenant, key)))
    (place,) = found
    assert place is not None
    return place


def order_of(service: StoreService, key: str) -> Save:
    return Save("", key, place_of(service, key))


def figures(service: StoreService) -> tuple[int, int]:
    """Return what has been asked of the store, and what was found."""
    found: list[tuple[int, int]] = []

    def look() -> None:
        service.desk.records.poll_hits()
        stats = service.desk.stats()
        found.append((stats.queries, stats.hits))

    service.call(look)
    return found[0]


def test_a_record_is_lent_in_place_until_nobody_refers_to_it(
    service: StoreService, first: FirstLevel, client: Client
) -> None:
    client.put("k", numbers(3))
    before = figures(service)
    lent = present(first.lend(order_of(service, "k")))
    assert service.leases == 1
    part = lent[:8].data
    assert is_equal(decode(lent, tensors="numpy", copy=True), numbers(3))
    del lent
    assert service.leases == 1, "a part of it is referred to"
    del part
    assert service.leases == 0
    assert figures(service) == before, "it is nobody's hit"


def test_what_was_lent_is_not_young_for_it(service: StoreService, first: FirstLevel, client: Client) -> None:
    client.put("old", numbers(1))
    client.put("new", numbers(2))
    assert first.lend(order_of(service, "old")) is not None
    touched: list[Handle] = []
    service.call(lambda: setattr(service.desk.records.ring, "on_hit", touched.append))
    figures(service)
    assert touched == []


@pytest.mark.parametrize("how", ["dropped", "of another ring"])
def test_a_missing_record_is_not_lent(service: StoreService, first: FirstLevel, client: Client, how: str) -> None:
    client.put("k", numbers(3))
    place = place_of(service, "k")
    if how == "dropped":
        client.drop("k")
    else:
        place = replace(place, epoch=place.epoch + 1)
    assert first.lend(Save("", "k", place)) is None
    assert service.leases == 0


@pytest.mark.parametrize("how", ["replaced", "another generation", "another size"])
def test_a_record_that_lies_elsewhere_now_is_looked_up_by_its_key(
    service: StoreService, first: FirstLevel, client: Client, how: str
) -> None:
    client.put("k", numbers(3))
    place = place_of(service, "k")
    match how:
        case "replaced":
            client.put("k", numbers(4), overwrite=True)
        case "another generation":
            place = replace(place, generation=place.generation + 1)
        case _:
            place = replace(place, nbytes=place.nbytes + 64)
    lent = present(first.lend(Save("", "k", place)))
    assert is_equal(decode(lent, tensors="numpy", copy=True), numbers(4 if how == "replaced" else 3))
    del lent
    assert service.leases == 0


@pytest.mark.parametrize("num_bytes", [16, 4 * MIN_PLACED_BYTES], ids=["small", "through its nursery"])
def test_an_encoded_record_is_put_for_the_tenant_and_epoch_of_its_order(
    service: StoreService, first: FirstLevel, client: Client, num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "Populator", AtOnce)
    record = {"x": np.arange(num_bytes, dtype=np.uint8), "n": 3}
    epoch = service.desk.records.epoch
    assert first.put("ours", "k", encoded(record), epoch)
    hit = present(client.get("k", tenant="ours", tensors="numpy"))
    assert is_equal(hit.record, record)
    assert not first.put("ours", "late", encoded(record), epoch - 1)
    puts = [message for message in service.received if getattr(message, "key", "") == "k"]
    assert isinstance(getattr(puts[0], "place", None), NurseryPlace) == (num_bytes > MIN_PLACED_BYTES)


def test_without_a_frontend_nothing_is_put_or_taken(run_dir: Path) -> None:
    directory = RunDir(run_dir)
    directory.create()
    with FirstLevel(directory, call_s=0.05) as first:
        with pytest.raises(ServiceUnavailable):
            first.put("", "k", encoded(numbers(1)), EPOCH_0)
        with pytest.raises(ServiceUnavailable):
            first.take_orders(0.05)


def test_who_takes_orders_is_a_reader_before_they_come(
    service: StoreService, first: FirstLevel, client: Client
) -> None:
    client.put("k", numbers(3))
    with pytest.raises(RemoteProtocolError, match="store_l2"):
        first.take_orders(1.0)
    num_messages = len(service.received)
    assert first.lend(order_of(service, "k")) is not None
    assert len(service.received) == num_messages


def test_orders_come_to_who_waits_for_them(run_dir: Path) -> None:
    def reply(message: object) -> list[Orders]:
        return [Orders(message.request_id, [], [], 7)] if isinstance(message, TakeOrders) else []

    with fake_service(run_dir, reply) as received, FirstLevel(RunDir(run_dir)) as first:
        assert first.take_orders(30.0).flush == 7
        (asked,) = [message for message in received if isinstance(message, TakeOrders)]
        assert asked.timeout_s == 30.0


def test_a_service_without_a_second_level_says_so(first: FirstLevel) -> None:
    with pytest.raises(RemoteProtocolError, match="store_l2"):
        first.take_orders(1.0)


def test_the_end_ends_a_wait(run_dir: Path) -> None:
    first = FirstLevel(RunDir(run_dir))
    ended: list[str] = []

    def wait() -> None:
        try:
            first.take_orders(30.0)
        except MmcachedError as error:
            ended.append(error.code)

    with fake_service(run_dir, lambda message: []) as received:
        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: sum(isinstance(each, TakeOrders) for each in received), lambda count: count == 1, "a poll")
        first.close()
        thread.join(DEADLINE_S)
    assert ended == ["client_closed"]
