"""Claims that wait for nobody: a hit, a claim that any process may fulfil, or the word that somebody computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmcached.client import Claim, Client, Hit, Pending, contact
from mmcached.shm import ReaderEntry
from mmcached.wire.errors import DeadlineExceeded, InvalidRequest, SegmentError
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.frontend import Cancel, ClaimRecords
from mmcached.wire.paths import RunDir
from tests.client.blocking import Make
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService
from tests.integration.processes import eventually


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for a service that was not there sooner than users do."""
    monkeypatch.setattr(contact, "RETRY_INTERVAL_S", 0.05)


def kinds(found: list[Any]) -> list[type]:
    return [type(each) for each in found]


def computing(service: StoreService) -> int:
    found: list[int] = []
    service.call(lambda: found.append(service.desk.stats().computing))
    return found[0]


def test_hits_take_no_message_and_all_the_rest_one(service: StoreService, client: Any) -> None:
    client.put("here", numbers(1))
    before = len(service.received)
    (hit,) = client.claim_many(["here"], tensors="numpy")
    assert is_equal(hit.record, numbers(1))
    assert len(service.received) == before
    assert client.claim_many([]) == []
    found = client.claim_many(["a", "here", "b", "a"], view=True, tensors="numpy")
    assert kinds(found) == [Claim, Hit, Claim, Pending]
    assert service.count(ClaimRecords) == 1
    assert [each.is_exclusive for each in found if isinstance(each, Claim)] == [True, True]
    assert found[1].token is not None
    assert client.store_counters().hits == 2


def test_another_put_ends_a_claim_and_serves_who_waits(service: StoreService, client: Any, run_dir: Path) -> None:
    (claim,) = client.claim_many(["k"])
    with Client(run_dir) as worker:
        assert kinds(worker.claim_many(["k"])) == [Pending]
        assert worker.put("k", numbers(1))
        assert computing(service) == 0
        assert kinds(worker.claim_many(["k"])) == [Hit]
    claim.drop()
    assert kinds(client.claim_many(["k"])) == [Hit]


@pytest.mark.parametrize("is_reader", [True, False])
def test_a_key_counts_when_its_claim_is_decided_and_not_for_each_look(
    service: StoreService, make: Make, run_dir: Path, monkeypatch: pytest.MonkeyPatch, is_reader: bool
) -> None:
    if not is_reader:
        monkeypatch.setattr(ReaderEntry, "attach", _no_entry)
    with make(run_dir, fail_open=False) as owner, make(run_dir, fail_open=False) as other:
        (claim,) = owner.claim_many(["k"])
        for _ in range(5):
            assert kinds(other.claim_many(["k"])) == [Pending]
        assert owner.put("k", numbers(1), claim=claim)
        assert kinds(other.claim_many(["k", "l", "l"])) == [Hit, Claim, Pending]
        seen = [client.store_counters() for client in (owner, other)]
        assert [(one.queries, one.hits) for one in seen] == [(1, 0), (2, 1)]
        service.call(service.desk.records.poll_hits)
        stats = service.desk.stats()
    assert (stats.queries, stats.hits) == (3, 1)


def _no_entry(announcement: RingAnnouncement) -> ReaderEntry:
    raise SegmentError("no entry for a test")


def test_the_owner_puts_under_its_claim(service: StoreService, client: Any) -> None:
    (claim,) = client.claim_many(["k"])
    assert client.put("k", numbers(1), claim=claim)
    assert computing(service) == 0
    assert not claim.is_exclusive, "it has ended"
    assert client.put("k", numbers(1), claim=claim), "as without it"


def test_what_was_computed_before_a_new_epoch_is_not_kept(service: StoreService, client: Any) -> None:
    (claim,) = client.claim_many(["k"])
    client.invalidate()
    assert not client.put("k", numbers(1), claim=claim)
    assert client.contains_many(["k"]) == [False]
    assert computing(service) == 0


def test_a_dropped_claim_is_the_next_ones(service: StoreService, client: Any, run_dir: Path) -> None:
    (claim,) = client.claim_many(["k"])
    with Client(run_dir) as other:
        assert kinds(other.claim_many(["k"])) == [Pending]
        claim.drop()
        claim.drop()
        eventually(lambda: computing(service), lambda count: count == 0, "dropped")
        assert kinds(other.claim_many(["k"])) == [Claim]
        eventually(lambda: computing(service), lambda count: count == 1, "claimed")
    eventually(lambda: computing(service), lambda count: count == 0, "its client was closed")


def test_beyond_the_limit_a_claim_keeps_nobody_from_computing(make: Make, run_dir: Path) -> None:
    limits = LimitsConfig(max_claims_per_client=2)
    with StoreService(run_dir, limits=limits) as service, make(run_dir, fail_open=False) as client:
        found = client.claim_many([f"k{number}" for number in range(5)])
        assert [each.is_exclusive for each in found] == [True, True, False, False, False]
        assert client.put("k4", numbers(4), claim=found[4])
        assert client.put("k0", numbers(0), claim=found[0])
        assert [each.is_exclusive for each in client.claim_many(["k2", "k3"])] == [True, False]
        assert computing(service) == 2


def test_many_keys_go_in_several_messages(service: StoreService, client: Any) -> None:
    client.put("k299", numbers(1))
    found = client.claim_many([f"k{number}" for number in range(600)])
    assert [index for index, each in enumerate(found) if isinstance(each, Hit)] == [299]
    assert service.count(ClaimRecords) == 3
    assert sum(isinstance(each, Claim) and each.is_exclusive for each in found) == computing(service)


def test_without_a_service_the_caller_computes(make: Make, run_dir: Path) -> None:
    RunDir(run_dir).create()
    with make(run_dir) as client:
        found = client.claim_many(["a", "b"])
        assert kinds(found) == [Claim, Claim]
        assert not any(each.is_exclusive for each in found)
        assert not client.put("a", numbers(1), claim=found[0])
        found[1].drop()
    with StoreService(run_dir, store_gb=0) as service, make(run_dir, fail_open=False) as client:
        assert not client.claim_many(["a"])[0].is_exclusive
        assert service.count(ClaimRecords) == 0


def test_a_late_answer_leaves_no_claim(service: StoreService, make: Make, run_dir: Path) -> None:
    with make(run_dir, fail_open=False) as client:
        client.put("other", numbers(1))
        service.hold = (ClaimRecords, Cancel)
        with pytest.raises(DeadlineExceeded):
            client.claim_many(["a", "b"], timeout_s=0.05)
        eventually(lambda: service.num_held, lambda count: count == 2, "held")
        service.release()
        assert computing(service) == 0


def test_a_claim_of_another_key_or_none_is_refused(service: StoreService, client: Any) -> None:
    (claim,) = client.claim_many(["k"])
    for wrong in (claim, "token"):
        with pytest.raises(InvalidRequest) as caught:
            client.put("other", numbers(1), claim=wrong)
        assert caught.value.details["field"] == "claim"
    with pytest.raises(InvalidRequest):
        client.put("k", [1], claim=claim)
    assert claim.is_exclusive, "nothing was sent"
