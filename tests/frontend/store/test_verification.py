"""Hits that hosts recompute: which, how they are counted, and what becomes of a name whose hits differ."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from mmcached.cache.name_files import note_name
from mmcached.cache.output_names import ROWS
from mmcached.cache.store_keys import output_key
from mmcached.client import Claim, Client
from mmcached.client.verb import ReadyResult
from mmcached.frontend.store import verification
from mmcached.wire.messages.frontend import GetRecords
from mmcached.wire.stats import StoreStats
from tests.client.services import StoreService
from tests.integration.processes import eventually

LASTING_S = 600.0
KEYS = [f"mine/{index}" for index in range(400)]


@pytest.fixture
def service(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir) as service:
        yield service


@pytest.fixture
def client(service: StoreService) -> Iterator[Client]:
    with Client(service.directory.path, fail_open=False) as client:
        client.get("anything")  # it is a reader now
        yield client


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a verification last for a whole test, on however busy a machine."""
    monkeypatch.setattr(verification, "VERIFY_S", LASTING_S)


def record(value: float, num_rows: int = 4) -> dict[str, Any]:
    return {"x": np.full((num_rows, 3), value, np.float32)}


def stats(service: StoreService) -> StoreStats:
    found: list[StoreStats] = []
    service.call(lambda: found.append(service.desk.stats()))
    return found[0]


def counted(service: StoreService, verified: int) -> StoreStats:
    return eventually(lambda: stats(service), lambda now: now.verified == verified, f"{verified} verified hits")


def test_nothing_is_recomputed_without_a_verification(client: Client) -> None:
    assert not client.is_verifying()
    assert client.sampled(KEYS) == frozenset()


def test_about_the_share_is_recomputed_and_another_part_a_second_later(service: StoreService, client: Client) -> None:
    client.verify(0.25)
    first = client.sampled(KEYS)
    assert 50 < len(first) < 150
    with Client(service.directory.path) as other:
        other.get("anything")
        assert other.sampled(KEYS) == first, "all programs choose the same"
    assert eventually(lambda: client.verify(0.25) and client.sampled(KEYS), lambda now: now != first, "other keys")
    client.verify(1.0)
    assert client.sampled(KEYS) == frozenset(KEYS)
    client.verify(0.0)
    assert client.sampled(KEYS) == frozenset()


def test_a_verification_ends_that_is_not_renewed(service: StoreService, client: Client) -> None:
    client.verify(1.0)
    service.call(lambda: service.desk.check(time.monotonic() + LASTING_S / 2))
    assert client.is_verifying()
    service.call(lambda: service.desk.check(time.monotonic() + LASTING_S))
    assert not client.is_verifying()


def test_equal_records_are_counted(service: StoreService, client: Client) -> None:
    assert client.verified("mine/0", record(1.0), record(1.0))
    now = counted(service, 1)
    assert (now.different, now.refused_names) == (0, 0)


def test_of_a_name_whose_hits_differ_nothing_is_kept_until_a_flush(service: StoreService, client: Client) -> None:
    large = {"x": np.zeros(1 << 18, np.uint8)}
    for key in KEYS[:3]:
        assert client.put(key, record(1.0))
    assert client.put("mine/large", large), "in a nursery"
    assert client.put("other/0", record(1.0))
    with Client(service.directory.path, tenant="b") as another:
        assert another.put(KEYS[0], record(1.0))
    with capture_logs() as logs:
        assert not client.verified(KEYS[0], record(1.0), record(2.0))
        now = counted(service, 1)
    assert (now.different, now.refused_names) == (1, 1)
    (told,) = (each for each in logs if "differs" in each["event"])
    assert (told["key"], told["num_dropped"]) == (KEYS[0], 4)
    assert told["difference"] == "x: 12 of 12 elements have other bits"
    assert client.contains_many([*KEYS[:3], "mine/large", "other/0"]) == [False, False, False, False, True]
    assert another.store_counters().puts == 1
    result = client.put(KEYS[0], record(2.0))
    assert not result
    assert "differed from its recomputation" in result.reason
    assert client.put("other/1", record(1.0)), "another name"
    with Client(service.directory.path, tenant="b") as another:
        assert another.exists(KEYS[0]), "another tenant"
    assert client.verify(0.0).refused == ["mine/"]
    client.flush()
    assert client.put(KEYS[0], record(2.0))
    assert client.verify(0.0).refused == []


def test_nobody_waits_for_a_record_that_is_refused(client: Client) -> None:
    client.verified(KEYS[0], record(1.0), record(2.0))
    with Client(client.run_dir) as other:
        assert client.get_or_compute(KEYS[1], lambda: record(3.0))["x"][0, 0] == 3.0
        mine, yours = (each.claim_many(KEYS[1:2])[0] for each in (client, other))
        assert isinstance(mine, Claim)
        assert isinstance(yours, Claim), "not told to wait"
        nested = client.get_or_compute(
            KEYS[2], lambda: other.get_or_compute(KEYS[2], lambda: record(4.0), timeout_s=30.0)
        )
        assert nested["x"][0, 0] == 4.0


def test_the_oldest_name_is_shared_again_beyond_the_most(
    service: StoreService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "MAX_REFUSED", 2)
    for name in "abc":
        client.verified(f"{name}/1", record(1.0), record(2.0))
    counted(service, 3)
    assert client.verify(0.0).refused == ["b/", "c/"]


def test_a_close_name_may_differ_in_the_last_bits_and_an_exact_one_may_not(
    service: StoreService, client: Client
) -> None:
    service.desk.verification.run_dir = client.run_dir
    rows = dict.fromkeys(ROWS) | {"host": "vllm"}
    keys = [
        output_key(note_name(client.run_dir, rows | {"batching": batching}), "1" * 64) for batching in ("any", "alone")
    ]
    assert client.verified(keys[0], record(1.0), record(1.001))
    assert client.verified(output_key("0" * 32, "1" * 64), record(1.0), record(1.001)), "a name that an operator gave"
    with capture_logs() as logs:
        assert not client.verified(keys[1], record(1.0), record(1.001))
        assert not client.verified(keys[0], record(1.0), record(2.0))
        counted(service, 4)
    names = [each["name_of_both"] for each in logs if "differs" in each["event"]]
    assert ['"batching": "alone"' in each for each in names] == [True, False]
    assert stats(service).refused_names == 2


def test_without_a_service_nothing_fails(run_dir: Path) -> None:
    with StoreService(run_dir), Client(run_dir) as client:
        client.put("a", record(1.0))
        client.verify(1.0)
    assert not client._calls.sampled(["a"]).result
    assert isinstance(client._calls.verified("a", record(1.0), record(1.0)), ReadyResult)


def test_a_verification_sends_no_message_with_a_hit(service: StoreService, client: Client) -> None:
    client.put("a", record(1.0))
    client.get("a")  # imports the library of its tensors, which takes seconds
    client.verify(1.0)
    before = len(service.received)
    assert client.sampled(["a"])
    assert client.get("a") is not None
    assert len(service.received) == before
    assert service.count(GetRecords) == 0
