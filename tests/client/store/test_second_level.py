"""Clients of a store with a second level: a desk and a ring in a thread, and a second level that is a dictionary."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import Claim, Pending
from mmcached.second_level.first_level import FirstLevel
from mmcached.shm.store.codec import EncodedRecord, Record, encode
from mmcached.wire.errors import ClientClosed, DeadlineExceeded
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.frontend import Cancel, ClaimRecord, ClaimRecords, GetRecords
from mmcached.wire.messages.parts import FetchEnd
from mmcached.wire.paths import RunDir
from tests.client.blocking import Make
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService
from tests.integration.processes import eventually

LIMITS = LimitsConfig(l2_timeout_ms=20_000, l2_claim_wait_ms=20_000)


def record() -> Record:
    return numbers(7)


class Elsewhere:
    """What other hosts have, and the process that brings it.

    Attributes:
        records: by key.
        computing: keys that another host computes.
        silent: keys about which nothing is said.
        num_fetches: ordered so far.
    """

    def __init__(self, run_dir: Path) -> None:
        self.records: dict[str, EncodedRecord] = {}
        self.computing: set[str] = set()
        self.silent: set[str] = set()
        self.saved: list[str] = []
        self.num_fetches = 0
        self._waiting: dict[int, Any] = {}
        self.first = FirstLevel(RunDir(run_dir))
        self._thread = threading.Thread(target=self._run, name="second level")
        self._thread.start()

    def put(self, key: str, record: Any) -> None:
        """Let another host have computed a record."""
        self.records[key] = encode(record)
        for fetch in [fetch for fetch in self._waiting.values() if fetch.key == key]:
            self._bring(fetch)

    def _run(self) -> None:
        try:
            while True:
                orders = self.first.take_orders(60.0)
                self.saved += [save.key for save in orders.saves]
                for fetch in orders.fetches:
                    self.num_fetches += 1
                    if fetch.key in self.records:
                        self._bring(fetch)
                    elif fetch.key in self.computing:
                        self._waiting[fetch.number] = fetch
                        self.first.ended([FetchEnd(fetch.number, "elsewhere")])
                    elif fetch.key not in self.silent:
                        self.first.ended([FetchEnd(fetch.number, "miss")])
        except ClientClosed:
            return  # closed

    def _bring(self, fetch: Any) -> None:
        self.first.put(fetch.tenant, fetch.key, self.records[fetch.key], fetch.store_epoch)

    def close(self) -> None:
        self.first.close()
        self._thread.join(30)


@pytest.fixture
def service(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir, store_l2="redis://nowhere", limits=LIMITS) as running:
        yield running


@pytest.fixture
def elsewhere(service: StoreService, run_dir: Path) -> Iterator[Elsewhere]:
    playing = Elsewhere(run_dir)
    eventually(lambda: service.desk.second_level.is_open, bool, "the second level")
    yield playing
    playing.close()


@pytest.fixture
def client(elsewhere: Elsewhere, make: Make, run_dir: Path) -> Iterator[Any]:
    with make(run_dir, fail_open=False) as opened:
        yield opened


def test_a_get_brings_what_another_host_has_and_a_hit_asks_nobody(
    service: StoreService, elsewhere: Elsewhere, client: Any
) -> None:
    elsewhere.put("a", record())
    client.put("b", record())
    hits = client.get_many(["a", "b", "c"], view=True)
    assert [hit is None for hit in hits] == [False, False, True]
    assert is_equal(hits[0].record, record())
    assert hits[0].token, "it lies in this host's store now"
    asked = [message for message in service.received if isinstance(message, GetRecords)]
    assert [sorted(message.keys) for message in asked] == [["a", "c"]]
    assert client.get("a", view=True) is not None
    assert client.get_many(["a", "b"], view=True)[1] is not None
    assert service.count(GetRecords) == 1
    del hits


def test_what_is_missing_everywhere_is_counted_once(service: StoreService, elsewhere: Elsewhere, client: Any) -> None:
    elsewhere.put("a", record())
    client.put("here", record())
    service.call(service.desk.records.poll_hits)
    before, of_client = service.desk.stats(), client.store_counters()
    assert client.get("a") is not None
    assert client.get("b") is None
    assert [hit is None for hit in client.get_many(["here", "c"])] == [False, True]
    assert client.get_or_compute("d", record) is not None
    service.call(service.desk.records.poll_hits)
    after = service.desk.stats()
    assert (after.queries - before.queries, after.hits - before.hits) == (5, 2)
    counters = client.store_counters()
    assert (counters.queries - of_client.queries, counters.hits - of_client.hits) == (5, 2)


def test_of_this_host_only_nobody_is_asked(service: StoreService, elsewhere: Elsewhere, client: Any) -> None:
    elsewhere.put("a", record())
    client.put("b", record())
    assert client.get("b", local=True) is not None
    assert client.get("a", local=True) is None
    assert client.get_many(["a", "b"], local=True)[0] is None
    assert client.contains_many(["a", "b"]) == [False, True]
    assert (service.count(GetRecords), elsewhere.num_fetches) == (0, 0)


def test_a_client_that_reads_no_ring_gets_a_copy_and_nothing_of_this_host_only(
    service: StoreService, elsewhere: Elsewhere, make: Make, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no /dev/shm here")

    monkeypatch.setattr("mmcached.client.store.session.ReaderEntry.attach", refuse)
    elsewhere.put("a", record())
    with make(run_dir, fail_open=False) as client:
        assert client.get("a", local=True) is None
        assert elsewhere.num_fetches == 0
        assert is_equal(client.get("a").record, record())


def test_a_deadline_of_ones_own_ends_the_wait(service: StoreService, elsewhere: Elsewhere, client: Any) -> None:
    client.put("b", record())
    elsewhere.silent.add("a")
    with pytest.raises(DeadlineExceeded):
        client.get("a", timeout_s=0.1)
    eventually(lambda: service.desk.second_level.fetches.num_parked, lambda num: num == 0, "parked")
    assert service.count(Cancel) == 1


def test_who_would_compute_finds_what_another_host_has_or_is_computing(
    service: StoreService, elsewhere: Elsewhere, client: Any
) -> None:
    elsewhere.put("a", record())
    assert is_equal(client.get_or_compute("a", lambda: pytest.fail("computed")), record())
    elsewhere.computing.add("b")
    client.put("contact", record())
    with_result: list[Any] = []
    waiting = threading.Thread(
        target=lambda: with_result.append(client.get_or_compute("b", lambda: pytest.fail("computed")))
    )
    waiting.start()
    eventually(lambda: service.desk.second_level.fetches.num_parked, lambda num: num == 1, "parked")
    eventually(lambda: len(elsewhere._waiting), lambda num: num == 1, "elsewhere")
    elsewhere.put("b", record())
    waiting.join(30)
    assert is_equal(with_result[0], record())
    assert service.count(ClaimRecord) == 2


def test_a_scheduler_hears_of_each_key_what_becomes_of_it(
    service: StoreService, elsewhere: Elsewhere, client: Any
) -> None:
    elsewhere.put("a", record())
    elsewhere.computing.add("b")
    hit, pending, claim = client.claim_many(["a", "b", "c"])
    assert is_equal(hit.record, record())
    assert isinstance(pending, Pending)
    assert isinstance(claim, Claim)
    assert claim.is_exclusive
    claim.drop()
    assert service.count(ClaimRecords) == 1


def test_what_is_put_is_saved(service: StoreService, elsewhere: Elsewhere, client: Any) -> None:
    client.put("a", record())
    client.get_or_compute("b", record)
    eventually(lambda: sorted(elsewhere.saved), lambda saved: saved == ["a", "b"], "saved")
