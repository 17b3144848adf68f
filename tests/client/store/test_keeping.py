"""What a client asks to be fetched, or kept: one message for each batch of keys, and no error without a service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.frontend.store import pin_service
from mmcached.wire.errors import DeadlineExceeded, InvalidRequest
from mmcached.wire.messages.frontend import MAX_KEYS, PinRecords, PrefetchRecords
from tests.client.blocking import Make
from tests.client.services import StoreService
from tests.client.test_cached_functions import run

BEGUN = [MAX_KEYS, 3]


@pytest.fixture
def service(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir, store_l2="redis://nowhere") as running:
        yield running


def asked(service: StoreService) -> list[PrefetchRecords]:
    return [message for message in service.received if isinstance(message, PrefetchRecords)]


def test_without_the_process_of_a_second_level_nothing_is_fetched(service: StoreService, client: Any) -> None:
    assert client.prefetch(["a", "b"]) == 0
    (message,) = asked(service)
    assert (message.keys, message.tenant) == (["a", "b"], "")
    assert client.prefetch([]) == 0
    assert len(asked(service)) == 1


def test_keys_go_in_batches_and_their_numbers_are_added(
    service: StoreService, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = iter(BEGUN)
    monkeypatch.setattr(service.desk.second_level, "prefetch", lambda client_id, missing: next(begun))
    assert client.prefetch([f"k{number}" for number in range(MAX_KEYS + 4)], tenant="t") == sum(BEGUN)
    assert [(len(message.keys), message.tenant) for message in asked(service)] == [(MAX_KEYS, "t"), (4, "t")]


def test_a_namespace_asks_for_its_own_keys(service: StoreService, client: Any) -> None:
    assert run(client, client.namespace("images").prefetch(["a"])) == 0
    assert [message.keys for message in asked(service)] == [["images/a"]]


def test_a_service_without_a_second_level_is_not_asked(run_dir: Path, make: Make) -> None:
    with StoreService(run_dir) as service, make(run_dir) as client:
        assert client.prefetch(["a"]) == 0
        assert asked(service) == []


def test_without_a_service_none_is_fetched_or_it_is_an_error(run_dir: Path, make: Make) -> None:
    with make(run_dir, connect_timeout_s=0.1) as client:
        assert client.prefetch(["a"]) == 0
    with StoreService(run_dir, store_l2="redis://nowhere"), make(run_dir, fail_open=False) as strict:
        assert strict.prefetch(["a"]) == 0
    with StoreService(run_dir, store_l2="redis://nowhere") as service, make(run_dir, fail_open=False) as strict:
        service.hold = (PrefetchRecords,)
        with pytest.raises(DeadlineExceeded):
            strict.prefetch(["a"], timeout_s=0.1)
        service.release()


# ---- pins


def pins_asked(service: StoreService) -> list[PinRecords]:
    return [message for message in service.received if isinstance(message, PinRecords)]


def test_pins_go_in_batches_and_missing_keys_are_told(service: StoreService, client: Any) -> None:
    keys = [f"k{number}" for number in range(MAX_KEYS + 2)]
    for key in keys[::128]:
        assert client.put(key, {"x": 1}, tenant="t")
    assert client.pin([], ttl_s=5) == []
    assert client.pin(keys, ttl_s=5, tenant="t") == [number % 128 == 0 for number in range(len(keys))]
    assert client.pin(keys[:1], ttl_s=5) == [False]
    assert [(len(message.keys), message.ttl_s, message.tenant) for message in pins_asked(service)] == [
        (MAX_KEYS, 5.0, "t"),
        (2, 5.0, "t"),
        (1, 5.0, ""),
    ]
    assert client.unpin(keys) == 0
    assert client.unpin([*keys, keys[0]], tenant="t") == 3
    assert client.unpin(keys, tenant="t") == 0


def test_a_namespace_pins_its_own_keys(service: StoreService, client: Any) -> None:
    space = client.namespace("images")
    client.put("images/a", {"x": 1})
    assert run(client, space.pin(["a", "b"], ttl_s=5)) == [True, False]
    assert run(client, space.unpin(["a", "b"])) == 1
    assert [message.keys for message in pins_asked(service)] == [["images/a", "images/b"]] * 2


def test_a_limit_on_pins_is_an_error_whatever_the_client_forgives(
    service: StoreService, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pin_service, "MAX_PINS", 1)
    for key in ("a", "b"):
        client.put(key, {"x": 1})
    with pytest.raises(InvalidRequest, match="pinned records = 2: at most 1 of all clients; unpin other records"):
        client.pin(["a", "b"], ttl_s=5)
    assert client.pin(["a"], ttl_s=5) == [True]


def test_without_a_service_none_is_pinned_or_it_is_an_error(run_dir: Path, make: Make) -> None:
    with make(run_dir, connect_timeout_s=0.1) as client:
        assert client.pin(["a", "b"], ttl_s=5) == [False, False]
        assert client.unpin(["a"]) == 0
    with StoreService(run_dir) as service, make(run_dir, fail_open=False) as strict:
        service.hold = (PinRecords,)
        with pytest.raises(DeadlineExceeded):
            strict.pin(["a"], ttl_s=5, timeout_s=0.1)
        with pytest.raises(DeadlineExceeded):
            strict.unpin(["a"], timeout_s=0.1)
        service.release()
