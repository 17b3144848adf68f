"""Drops end to end: two or three frontends, and their second levels in this process; the server is in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import Client
from mmcached.second_level import process
from mmcached.wire.errors import ServiceUnavailable
from tests.client.records import numbers
from tests.integration.processes import DEADLINE_S, eventually
from tests.second_level.frontends import Fleet, FrontendThread, config_of


@pytest.fixture
def fleet(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setattr(process, "PROBE_INTERVAL_S", 0.05)
    with Fleet(run_dir) as fleet:
        yield fleet
        fleet.server.released.set()


def seed_of(client: Client, key: str = "k", *, local: bool = False) -> Any:
    hit = client.get(key, local=local)
    return hit and hit["seed"]


def saved(client: Client, level: Any, seed: int, key: str = "k") -> None:
    """Have a host compute a record, and wait until the server has it."""
    before = level.stats().puts_kept
    assert client.put(key, numbers(seed))
    eventually(lambda: level.stats().puts_kept, lambda count: count == before + 1, "a save")


def test_a_drop_reaches_the_server_at_once_and_the_copies_of_all_hosts_soon(fleet: Fleet) -> None:
    (ann, of_ann), (bob, of_bob), (eve, _) = (fleet.host(name) for name in "abe")
    saved(ann, of_ann, 1)
    assert [seed_of(bob), seed_of(eve)] == [1, 1]
    assert bob.drop("k")
    assert seed_of(bob) is None, "neither here nor on the server"
    for client in (ann, eve):
        eventually(lambda: seed_of(client), lambda seed: seed is None, "the end of a copy")  # noqa: B023
    saved(bob, of_bob, 2)
    assert [seed_of(client) for client in (ann, bob, eve)] == [2, 2, 2]
    assert of_bob.stats().drops_done == 1
    assert ann.stats().store.fetches.dropped == 1


def test_a_record_that_replaces_a_dropped_one_at_once_stays(fleet: Fleet) -> None:
    (ann, of_ann), (bob, of_bob) = fleet.host("a"), fleet.host("b")
    for number in range(5):
        saved(ann, of_ann, 10 * number)
        assert ann.drop("k")
        saved(ann, of_ann, 10 * number + 1)
        of_bob._records.probe(deadline=float("inf"))
        eventually(lambda: seed_of(bob), lambda seed: seed == 10 * number + 1, "the later one")  # noqa: B023
        assert seed_of(ann, local=True) == 10 * number + 1
        assert ann.drop("k")
        assert seed_of(ann) is None
        eventually(lambda: seed_of(bob), lambda seed: seed is None, "the end of its copy")


def test_delete_drops_on_all_hosts_too_and_a_local_one_on_none_other(fleet: Fleet) -> None:
    (ann, of_ann), (bob, _) = fleet.host("a"), fleet.host("b")
    for number, key in enumerate(("k", "l")):
        saved(ann, of_ann, number, key)
    assert ann.delete("k", "l", local=True) == 2
    assert [seed_of(ann, key) for key in ("k", "l")] == [0, 1], "of the server"
    assert ann.delete("k", "l", "m") == 2
    assert [seed_of(client, key) for client in (ann, bob) for key in ("k", "l")] == [None] * 4


def test_a_fetch_of_before_brings_nothing_back(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    (ann, of_ann), (bob, of_bob) = fleet.host("a"), fleet.host("b")
    saved(ann, of_ann, 1)
    entered, go_on, read = threading.Event(), threading.Event(), threading.Event()
    get_many = of_bob._records._server._backend.get_many

    def hold(names: Any, *, deadline: float) -> Any:
        found = get_many(names, deadline=deadline)
        if len(names) > 1 and not entered.is_set():  # the fetch, not the log
            entered.set()
            assert go_on.wait(DEADLINE_S)
            read.set()
        return found

    monkeypatch.setattr(of_bob._records._server._backend, "get_many", hold)
    fetching = threading.Thread(target=bob.get, args=("k",))
    fetching.start()
    assert entered.wait(DEADLINE_S)
    assert ann.drop("k")
    eventually(lambda: of_bob._records.drops.id_of("?") or of_bob._records.drops._count, bool, "its log is read")
    eventually(lambda: bob.stats().store.fetches.parked, lambda count: count == 0, "the fetch has ended")
    go_on.set()
    fetching.join(DEADLINE_S)
    assert read.wait(DEADLINE_S)
    eventually(lambda: of_bob.stats().queries, lambda count: count >= 1, "its end")
    assert seed_of(bob, local=True) is None
    assert seed_of(bob) is None


def test_a_server_that_fails_is_an_error_and_the_drop_is_done_later(fleet: Fleet, run_dir: Path) -> None:
    (ann, of_ann), (bob, _) = fleet.host("a"), fleet.host("b")
    saved(ann, of_ann, 1)
    assert seed_of(bob) == 1
    fleet.server.fault = "the server is full"
    with Client(run_dir / "a", tenant="t", fail_open=False) as strict, pytest.raises(ServiceUnavailable, match="full"):
        strict.drop("k")
    assert not ann.drop("k")
    assert seed_of(ann, local=True) is None
    assert seed_of(ann) is None
    fleet.server.fault = ""
    eventually(lambda: seed_of(bob), lambda seed: seed is None, "the end of its copy")
    eventually(lambda: ann.stats().store.fetches.waiting_drops, lambda count: count == 0, "the drop")
    assert seed_of(ann) is None


def test_a_frontend_that_was_away_hears_of_drops_when_it_is_back(fleet: Fleet, run_dir: Path) -> None:
    ann, of_ann = fleet.host("a")
    saved(ann, of_ann, 1)
    path = run_dir / "b"
    with FrontendThread(path, config_of(keep_cache=True)) as frontend:
        level = fleet.level(frontend)
        with Client(path, tenant="t") as bob:
            assert seed_of(bob) == 1
    assert ann.drop("k")
    with FrontendThread(path, config_of()) as frontend, Client(path, tenant="t") as bob:
        frontend.await_level()
        eventually(lambda: seed_of(bob), lambda seed: seed is None, "the end of its copy")
    level.close()
