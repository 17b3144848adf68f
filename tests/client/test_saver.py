"""A saver never keeps its caller waiting, holds no more than it may, and ends each save in one of four ways."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from mmcached.client import Client
from mmcached.client.saver import NotKept, Saver, SaverCounters
from mmcached.client.store.claims import Claim, Pending
from mmcached.shm.store.codec import Record
from tests.client.services import StoreService
from tests.clock import Clock
from tests.present import present

DEADLINE_S = 30.0


class Gate:
    """A record that is made when the test says so."""

    def __init__(self) -> None:
        self.is_making = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self) -> Record:
        self.is_making.set()
        assert self.may_go_on.wait(DEADLINE_S)
        return {"x": 1}


class Ends(list[tuple[str, str]]):
    def __call__(self, key: str, outcome: str) -> None:
        self.append((key, outcome))


@pytest.fixture
def client(run_dir: Path) -> Iterator[Client]:
    with StoreService(run_dir), Client(run_dir) as client:
        yield client


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def new_saver(client: Client, ends: Ends) -> Iterator[Callable[..., Saver]]:
    savers = []

    def make(**named: object) -> Saver:
        savers.append(Saver(client, **({"max_bytes": 100, "on_end": ends} | named)))  # type: ignore[arg-type]
        return savers[-1]

    yield make
    for saver in savers:
        saver.close()
        saver.close()


def unwanted() -> Record:
    raise AssertionError("nobody needs this record")


def test_what_is_saved_is_found(client: Client, new_saver: Callable[..., Saver], ends: Ends) -> None:
    saver, tensor = new_saver(), torch.arange(6.0, dtype=torch.bfloat16).reshape(2, 3)
    assert saver.save("k", 12, lambda: {"e": tensor})
    assert saver.drain(DEADLINE_S)
    hit = present(client.get("k"))
    assert torch.equal(hit.record["e"], tensor)
    assert (saver.counters, saver.waiting_bytes, ends) == (SaverCounters(saved=1), 0, [("k", "saved")])


def test_the_caller_goes_on_while_a_record_is_made(new_saver: Callable[..., Saver]) -> None:
    saver, gate = new_saver(), Gate()
    assert saver.save("k", 1, gate)
    assert not saver.drain(0)
    gate.may_go_on.set()
    assert saver.drain(DEADLINE_S)


def test_what_is_there_is_not_made(client: Client, new_saver: Callable[..., Saver]) -> None:
    client.put("k", {"x": 1})
    saver = new_saver()
    saver.save("k", 1, unwanted)
    assert saver.drain(DEADLINE_S)
    assert saver.counters == SaverCounters(saved=1)


def test_a_key_that_waits_is_not_taken_twice(new_saver: Callable[..., Saver]) -> None:
    saver, gate = new_saver(), Gate()
    assert saver.save("k", 60, gate)
    assert saver.save("k", 60, unwanted)
    gate.may_go_on.set()
    assert saver.drain(DEADLINE_S)
    assert saver.counters == SaverCounters(saved=1)


def test_no_more_waits_than_may(new_saver: Callable[..., Saver], ends: Ends) -> None:
    saver, gate = new_saver(max_bytes=100), Gate()
    assert saver.save("first", 60, gate)
    assert gate.is_making.wait(DEADLINE_S)
    assert saver.save("second", 40, lambda: {"x": 2})
    assert not saver.save("third", 1, unwanted), "the record that is being made still counts"
    assert ends == [("third", "dropped")]
    gate.may_go_on.set()
    assert saver.drain(DEADLINE_S)
    assert saver.counters == SaverCounters(saved=2, dropped=1)
    assert not saver.save("larger than all", 101, unwanted)


def test_what_was_dropped_is_saved_when_it_comes_again(client: Client, new_saver: Callable[..., Saver]) -> None:
    saver, keys = new_saver(), [f"slice {index}" for index in range(8)]
    num_left: list[int] = []
    while not num_left or num_left[-1]:
        gate = Gate()
        for key, is_there in zip(keys, client.contains_many(keys), strict=True):
            if not is_there:
                saver.save(key, 40, gate)
        gate.may_go_on.set()
        assert saver.drain(DEADLINE_S)
        num_left.append(client.contains_many(keys).count(False))
    assert num_left == [6, 4, 2, 0], "as many of a clip's as fit, each time that the clip is seen"


def test_what_has_waited_too_long_is_dropped(new_saver: Callable[..., Saver], ends: Ends) -> None:
    clock, gate = Clock(), Gate()
    saver = new_saver(clock=clock, max_wait_s=5.0)
    saver.save("first", 1, gate)
    assert gate.is_making.wait(DEADLINE_S)
    saver.save("late", 1, unwanted)
    clock.now += 5.1
    gate.may_go_on.set()
    assert saver.drain(DEADLINE_S)
    assert ends == [("first", "saved"), ("late", "dropped")]


@pytest.mark.parametrize("record", [unwanted, lambda: {"x": object()}])
def test_a_record_that_cannot_be_made_harms_no_other(
    client: Client, new_saver: Callable[..., Saver], record: Callable[[], Record]
) -> None:
    saver = new_saver()
    saver.save("bad", 1, record)
    saver.save("good", 1, lambda: {"x": 1})
    assert saver.drain(DEADLINE_S)
    assert saver.counters == SaverCounters(saved=1, failed=1)
    assert client.contains_many(["bad", "good"]) == [False, True]


def test_a_record_that_the_store_does_not_keep_is_refused(new_saver: Callable[..., Saver], tmp_path: Path) -> None:
    saver = new_saver()
    saver.save("too large", 1, lambda: {"x": torch.zeros(9 << 20, dtype=torch.uint8)})
    assert saver.drain(DEADLINE_S)
    assert saver.counters == SaverCounters(refused=1)
    with Client(tmp_path / "nobody", connect_timeout_s=0.1) as alone, Saver(alone, max_bytes=9) as other:
        other.save("k", 1, lambda: {"x": 1})
        assert other.drain(DEADLINE_S)
        assert other.counters == SaverCounters(refused=1)


def test_close_drops_what_waits(new_saver: Callable[..., Saver], ends: Ends) -> None:
    saver, gate = new_saver(), Gate()
    saver.save("first", 1, gate)
    assert gate.is_making.wait(DEADLINE_S)
    saver.save("second", 1, unwanted)
    closing = threading.Thread(target=saver.close)
    closing.start()
    names = count()
    while saver.save(f"beside {next(names)}", 0, unwanted):  # until the end has begun
        pass
    gate.may_go_on.set()
    closing.join(DEADLINE_S)
    assert not closing.is_alive()
    assert ("second", "dropped") in ends


# ---- claims


def claimed(client: Client, key: str) -> Claim:
    (claim,) = client.claim_many([key])
    assert isinstance(claim, Claim)
    assert claim.is_exclusive
    return claim


def test_a_claim_lasts_until_its_record_is_there(
    client: Client, new_saver: Callable[..., Saver], run_dir: Path
) -> None:
    saver, gate = new_saver(), Gate()
    with Client(run_dir) as other:
        assert saver.save("k", 1, gate, claim=claimed(client, "k"))
        assert gate.is_making.wait(DEADLINE_S)
        assert other.claim_many(["k"]) == [Pending("k")]
        gate.may_go_on.set()
        assert saver.drain(DEADLINE_S)
        assert present(other.get("k")).record == {"x": 1}


def not_kept() -> Record:
    raise NotKept


@pytest.mark.parametrize("make", [not_kept, lambda: {"x": object()}, lambda: {"x": torch.zeros(9 << 20).byte()}])
def test_a_claim_ends_with_a_save_that_fails(
    client: Client, new_saver: Callable[..., Saver], run_dir: Path, make: Callable[[], Record]
) -> None:
    saver = new_saver()
    saver.save("k", 1, make, claim=claimed(client, "k"))
    assert saver.drain(DEADLINE_S)
    assert saver.counters.saved == 0
    with Client(run_dir) as other:
        claimed(other, "k")


def test_a_claim_ends_with_a_save_that_is_not_taken(
    client: Client, new_saver: Callable[..., Saver], run_dir: Path
) -> None:
    """For lack of space; because its key waits already; because the saver is closed."""
    saver, gate = new_saver(max_bytes=100), Gate()
    saver.save("first", 60, gate)
    assert gate.is_making.wait(DEADLINE_S)
    claims = {key: claimed(client, key) for key in ("first", "large", "late")}
    assert not saver.save("large", 60, unwanted, claim=claims["large"])
    assert saver.save("first", 60, unwanted, claim=claims["first"])
    gate.may_go_on.set()
    saver.close()
    assert not saver.save("late", 1, unwanted, claim=claims["late"])
    with Client(run_dir) as other:
        claimed(other, "large")
        claimed(other, "late")
        assert present(other.get("first")).record == {"x": 1}


def test_claims_end_when_the_saver_is_closed(client: Client, new_saver: Callable[..., Saver], run_dir: Path) -> None:
    saver, gate = new_saver(), Gate()
    saver.save("first", 1, gate)
    assert gate.is_making.wait(DEADLINE_S)
    saver.save("second", 1, unwanted, claim=claimed(client, "second"))
    gate.may_go_on.set()
    saver.close()
    with Client(run_dir) as other:
        claimed(other, "second")


def test_a_key_may_come_again_when_its_end_is_reported(client: Client) -> None:
    outcomes: list[str] = []

    def again(key: str, outcome: str) -> None:
        outcomes.append(outcome)
        if outcome == "refused":
            assert saver.save(key, 1, lambda: {"x": 1})

    with Saver(client, max_bytes=9, on_end=again) as saver:
        saver.save("k", 1, not_kept)
        assert saver.drain(DEADLINE_S)
    assert outcomes == ["refused", "saved"]
