"""Leases that are handed on: what one client has found, another opens by its token, whatever becomes of the record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.client import Client
from mmcached.client.store.tokens import checked_token
from mmcached.shm import ReaderEntry
from mmcached.wire.errors import InvalidRequest, LocalProtocolError
from mmcached.wire.messages.frontend import RegisterReader
from mmcached.wire.paths import RunDir
from tests.client.blocking import Make
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService
from tests.frontend.integrity import check_store
from tests.integration.processes import eventually
from tests.present import present

RING_ID = "0123456789abcdef" * 2
NUM_RECORDS = 600
"""Of 64 KiB: more than twice what the store holds."""


def no_leases(service: StoreService) -> None:
    eventually(lambda: service.leases, lambda count: count == 0, "leases")


@pytest.fixture
def taker(service: StoreService, run_dir: Path) -> Iterator[Client]:
    """Connect the client that takes leases and hands them on."""
    with Client(run_dir, fail_open=False) as taker:
        yield taker


def take(taker: Client, key: str = "k") -> Any:
    hit = present(taker.get(key, view=True, tensors="numpy"))
    assert hit.token is not None
    return hit


@pytest.mark.parametrize("view", [False, True])
def test_what_one_has_found_another_opens_without_a_message(
    service: StoreService, taker: Client, client: Any, view: bool
) -> None:
    taker.put("k", numbers(1))
    hit = take(taker)
    assert client.open(hit.token, tensors="numpy") is not None, "it becomes a reader first"
    before = len(service.received)
    opened = client.open(hit.token, view=view, tensors="numpy")
    assert len(service.received) == before
    assert service.leases == 1 + view
    assert opened.token == (hit.token if view else None)
    hit.close()
    del hit
    assert is_equal(opened.record, numbers(1))
    assert service.leases == view, "each gives back its own"
    del opened
    no_leases(service)
    assert client.store_counters().hits == 2


@pytest.mark.parametrize("forget", ["drop", "flush", "invalidate"])
def test_it_is_there_as_long_as_the_first_holds_it_whatever_becomes_of_the_record(
    service: StoreService, taker: Client, client: Any, forget: str
) -> None:
    taker.put("k", numbers(1))
    hit = take(taker)
    taker.drop("k") if forget == "drop" else getattr(taker, forget)()
    for seed in range(NUM_RECORDS):
        taker.put(f"other{seed}", numbers(seed, 64 << 10))
    assert client.get("k") is None
    opened = client.open(hit.token, view=True, tensors="numpy")
    del hit
    taker.put("k", numbers(2))
    assert is_equal(opened.record, numbers(1)), "its own lease keeps the bytes"
    del opened
    no_leases(service)
    service.call(lambda: check_store(service.desk))


def test_when_all_have_given_back_the_next_record_is_never_taken_for_it(
    service: StoreService, taker: Client, client: Any
) -> None:
    tokens = []
    for seed in range(NUM_RECORDS):
        found_now = None
        while found_now is None:  # the store is full: a record without a hit may leave it before the look
            assert taker.put(f"k{seed}", numbers(seed, 64 << 10))
            found_now = taker.get(f"k{seed}", view=True, tensors="numpy")
        hit = found_now
        tokens.append(hit.token)
    found = [client.open(token, tensors="numpy") for token in tokens]
    hit.close()
    assert found[0] is None
    assert found[-1] is not None, "it was leased, so neither evicted nor moved"
    assert all(hit is None or is_equal(hit.record, numbers(seed, 64 << 10)) for seed, hit in enumerate(found))
    taker.drop(f"k{NUM_RECORDS - 1}")
    assert client.open(tokens[-1]) is None
    no_leases(service)


def test_it_becomes_a_reader_once(service: StoreService, taker: Client, client: Any) -> None:
    taker.put("k", numbers(1))
    hit = take(taker)
    for _ in range(3):
        assert client.open(hit.token) is not None
    assert service.count(RegisterReader) == 2


def test_a_copy_and_a_closed_hit_have_no_token(service: StoreService, taker: Client, make: Make, run_dir: Path) -> None:
    taker.put("k", numbers(1))
    copied = present(taker.get("k"))
    assert copied.token is None
    hit = take(taker)
    token = hit.token
    hit.close()
    with pytest.raises(LocalProtocolError, match="closed"):
        _ = hit.token
    assert taker.open(token) is not None, "the record has not been evicted"


def test_who_is_no_reader_opens_nothing(make: Make, run_dir: Path) -> None:
    with StoreService(run_dir, store_max_clients=2, world_size=0) as service, Client(run_dir) as taker:
        announcement = present(service.desk.announcement)
        with ReaderEntry.attach(announcement):
            taker.put("k", numbers(1))
            hit = take(taker)
            with make(run_dir) as client:
                assert client.open(hit.token) is None
                assert client.get("k", view=True).token is None, "it came inline"
            del hit


def test_without_a_service_nothing_is_opened(make: Make, run_dir: Path) -> None:
    RunDir(run_dir).create()
    with make(run_dir) as client:
        assert client.open(f"{RING_ID}.1.0.1") is None
        assert client.store_counters().failures == 2


@pytest.mark.parametrize(
    ("token", "field"),
    [
        (None, "token"),
        (b"1", "token"),
        ("", "token"),
        (f"{RING_ID}.1.0.1 ", "token"),
        (f"{RING_ID}.1.0.1\n", "token"),
        (f"{RING_ID.upper()}.1.0.1", "token"),
        (f"{RING_ID}.01.0.1", "token"),
        (f"{RING_ID}.-1.0.1", "token"),
        (f"{RING_ID}.1.0.\u0661", "token"),
        (f"{RING_ID}.1.0", "token"),
        ("\ud800" * 500, "token"),
        (f"{RING_ID}.{1 << 63}.0.1", "token.epoch"),
        (f"{RING_ID}.1.{1 << 32}.1", "token.slot"),
        (f"{RING_ID}.1.0.0", "token.generation"),
        (f"{RING_ID}.1.0.{1 << 62}", "token.generation"),
    ],
)
def test_what_is_no_token_is_refused_before_anything_is_sent(
    service: StoreService, client: Any, token: Any, field: str
) -> None:
    before = len(service.received)
    with pytest.raises(InvalidRequest) as caught:
        client.open(token)
    assert caught.value.details["field"] == field
    assert len(service.received) == before


def test_a_forged_token_gets_what_is_there_or_nothing(service: StoreService, taker: Client, client: Any) -> None:
    taker.put("k", numbers(1))
    token = take(taker).token
    ring_id, epoch, true_slot, true_generation = checked_token(token)
    ring = present(service.desk.announcement)
    for slot in range(ring.num_slots):
        for generation in (true_generation - 1, true_generation, true_generation + 1, (1 << 62) - 1):
            if generation and (slot, generation) != (true_slot, true_generation):
                assert client.open(f"{ring_id}.{epoch}.{slot}.{generation}") is None
    assert client.open(f"{'f' * 32}.{epoch}.{true_slot}.{true_generation}") is None
    assert client.open(f"{ring_id}.{epoch + 1}.{true_slot}.{true_generation}") is None
    with pytest.raises(InvalidRequest, match="a slot below"):
        client.open(f"{ring_id}.{epoch}.{ring.num_slots}.{true_generation}")
    assert np.array_equal(client.open(token, tensors="numpy").record["x"], numbers(1)["x"])
    no_leases(service)
