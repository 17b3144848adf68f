"""What a client asks for ahead of need: one message for each batch of keys, and no error without a service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.wire.errors import DeadlineExceeded
from mmcached.wire.messages.frontend import MAX_KEYS, PrefetchRecords
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
