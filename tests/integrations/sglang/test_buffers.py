"""Buffers come back as they were saved, whole or not at all, and whatever becomes of them or of the service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from mmcached.client import Client
from mmcached.client.saver import Saver
from mmcached.integrations.sglang.buffers import Buffers, Bytes
from mmcached.integrations.sglang.identity import item_key
from tests.client.services import StoreService
from tests.integration.processes import eventually

DEADLINE_S = 30.0
MIB = 1 << 20


@pytest.fixture
def service(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir) as service:
        yield service


@pytest.fixture
def client(service: StoreService, run_dir: Path) -> Iterator[Client]:
    with Client(run_dir, timeout_s=DEADLINE_S) as client:
        yield client


@pytest.fixture
def saver(client: Client) -> Iterator[Saver]:
    with Saver(client, max_bytes=MIB) as saver:
        yield saver


@pytest.fixture
def buffers(client: Client, saver: Saver) -> Buffers:
    return Buffers(client, saver)


def pages(*sizes: int, seed: int | None = None) -> list[Bytes]:
    draw = np.random.default_rng(seed)
    return [np.zeros(n, np.uint8) if seed is None else draw.integers(0, 256, n, np.uint8) for n in sizes]


def read(buffers: Buffers, keys: list[str], *items: list[Bytes]) -> list[bool]:
    """Read into the pages of each item, which live as long as the call."""
    return buffers.read(keys, *places(items))


def save(buffers: Buffers, keys: list[str], *items: list[Bytes]) -> list[bool]:
    return buffers.save(keys, *places(items))


def places(items: Sequence[list[Bytes]]) -> tuple[list[list[int]], list[list[int]]]:
    """Return addresses and sizes of the pages of each item."""
    return [[page.ctypes.data for page in item] for item in items], [[page.nbytes for page in item] for item in items]


def test_pages_come_back_in_other_pages(buffers: Buffers, saver: Saver) -> None:
    one, two = pages(5000, 300, seed=1), pages(77, seed=2)
    assert buffers.contains(["one", "two"]) == [False, False]
    assert save(buffers, ["one", "two"], one, two) == [True, True]
    assert saver.drain(DEADLINE_S)
    assert buffers.contains(["two", "none", "one"]) == [True, False, True]
    other, same, untouched = pages(1, 5200, 99), pages(77), pages(8)
    assert read(buffers, ["one", "none", "two"], other, untouched, same) == [True, False, True]
    assert b"".join(page.tobytes() for page in other) == b"".join(page.tobytes() for page in one)
    assert same[0].tobytes() == two[0].tobytes()
    assert not untouched[0].any()


@pytest.mark.parametrize("size", [1, 99, 101])
def test_a_record_of_another_size_is_a_miss_and_nothing_is_written(buffers: Buffers, saver: Saver, size: int) -> None:
    save(buffers, ["x"], pages(100, seed=1))
    assert saver.drain(DEADLINE_S)
    target = pages(size)
    assert read(buffers, ["x"], target) == [False]
    assert not target[0].any()


def test_a_record_with_numbers_that_are_not_finite_is_a_miss(client: Client, saver: Saver) -> None:
    numbers = torch.zeros(64, dtype=torch.bfloat16)
    for key, number in (("right", 1.0), ("nan", torch.nan), ("infinite", -torch.inf)):
        numbers[-1] = number
        assert client.put(key, {"embedding": numbers.view(torch.uint8).clone()})
    buffers, to = Buffers(client, saver, torch.bfloat16), np.zeros(128, np.uint8)
    for key in ("nan", "infinite", "right"):
        assert buffers.read([key], [[to.ctypes.data]], [[to.nbytes]]) == [key == "right"]
        assert to.any() == (key == "right")


@pytest.mark.parametrize("record", [{}, {"embedding": 7}, {"embedding": "text"}, {"other": np.zeros(8, np.uint8)}])
def test_a_record_of_another_form_is_a_miss(buffers: Buffers, client: Client, record: dict[str, object]) -> None:
    assert client.put("x", record)
    assert read(buffers, ["x"], pages(8)) == [False]


def test_pages_may_be_reused_as_soon_as_they_are_taken(client: Client, buffers: Buffers, saver: Saver) -> None:
    page = pages(4096, seed=3)
    first = page[0].tobytes()
    assert save(buffers, ["x"], page) == [True]
    page[0][:] = 0
    assert saver.drain(DEADLINE_S)
    copy = pages(4096)
    assert read(buffers, ["x"], copy) == [True]
    assert copy[0].tobytes() == first


def test_what_is_known_is_not_saved_again(buffers: Buffers, saver: Saver) -> None:
    save(buffers, ["x"], pages(10, seed=1))
    assert saver.drain(DEADLINE_S)
    assert save(buffers, ["x"], pages(10, seed=2)) == [True]
    assert saver.drain(DEADLINE_S)
    assert saver.counters.saved == 1


def test_more_than_may_wait_is_not_taken(buffers: Buffers, saver: Saver) -> None:
    assert save(buffers, ["big"], pages(MIB + 1)) == [False]
    assert saver.counters.dropped == 1


def test_nothing_is_left_leased(service: StoreService, buffers: Buffers, saver: Saver) -> None:
    save(buffers, ["x"], pages(100_000, seed=1))
    assert saver.drain(DEADLINE_S)
    for size in (100_000, 7):
        read(buffers, ["x"], pages(size))
    eventually(lambda: service.leases, lambda count: count == 0, "leases")


def test_without_a_service_all_is_a_miss(run_dir: Path) -> None:
    with Client(run_dir, timeout_s=0.2, connect_timeout_s=0.2) as client, Saver(client, max_bytes=MIB) as saver:
        buffers = Buffers(client, saver)
        assert buffers.contains(["x"]) == [False]
        assert read(buffers, ["x"], pages(8)) == [False]
        assert save(buffers, ["x"], pages(8)) == [True]
        assert saver.drain(DEADLINE_S)
        assert saver.counters.refused == 1


def test_keys_tell_items_and_lists_of_items_apart() -> None:
    names = [("a", "1"), ("b", "1"), ("a", "2"), ("a", "1", "2"), ("a", "2", "1"), ("a", "list", "1"), ("a", "12")]
    assert len({item_key(*name) for name in names}) == len(names)
    assert item_key("a", 1, 2) == item_key("a", "1", "2")
    assert item_key("a", "x" * 10_000).startswith("encoder/a/")
