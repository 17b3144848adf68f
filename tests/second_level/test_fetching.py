"""What becomes of a fetch: found, not there, with another host, too late, or wrong. The server is in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mmcached.cache.store_keys import store_key
from mmcached.second_level import breaker
from mmcached.second_level.fetching import encoded_of
from mmcached.second_level.records import Found, pack
from mmcached.shm import encode
from mmcached.wire.errors import RemoteProtocolError
from tests.client.records import every_dtype, is_equal, numbers
from tests.integration.processes import DEADLINE_S, eventually
from tests.present import present
from tests.second_level.hosts import Host, a_host
from tests.second_level.plain_server import PlainServer

NAME = store_key("t", "k")


@pytest.fixture
def server() -> Iterator[PlainServer]:
    server = PlainServer()
    yield server
    server.released.set()


@pytest.fixture
def host(run_dir: Path, server: PlainServer) -> Iterator[Host]:
    with a_host(run_dir / "a", server) as host:
        yield host


@pytest.fixture
def other(run_dir: Path, server: PlainServer) -> Iterator[Host]:
    with a_host(run_dir / "b", server) as host:
        yield host


def save(host: Host, key: str, record: dict[str, object]) -> None:
    """Have a host put a record, and save it."""
    num_kept = host.stats().puts_kept
    host.saving.order([host.put(key, record)], time.monotonic())
    host.await_stats(lambda stats: stats.puts_kept == num_kept + 1, "a save")


def order(host: Host, *fetches: object) -> None:
    host.fetching.order(fetches, time.monotonic())  # type: ignore[arg-type]


def framed(epoch: int, record: bytes) -> bytes:
    """Return what lies in a server that has these bytes for a record."""
    ((_, pieces),) = pack(NAME, epoch, [record])
    return b"".join(pieces)


def test_what_another_host_has_saved_is_put_here_bit_for_bit(host: Host, other: Host) -> None:
    save(other, "k", every_dtype())
    order(host, host.fetch(1), host.fetch(2, "none"))
    stats = host.await_stats(lambda stats: stats.queries == 2, "two ends")
    hit = present(host.client.get("k", tenant="t"))
    assert is_equal(hit.record, every_dtype())
    assert (stats.gets_hit, stats.gets_missed) == (1, 1)
    assert stats.bytes_read == other.stats().bytes_written > 0
    eventually(lambda: sorted(host.ends), lambda ends: ends == [(1, "hit"), (2, "miss")], "both ends")


def test_a_record_in_pieces_is_put_together() -> None:
    record = every_dtype()
    made = encode(record)
    whole = np.empty(made.nbytes, np.uint8)
    made.write_into(whole)
    pieces = [whole[:70].data, whole[70:100].data, whole[100:].data]
    found = encoded_of(Found(pieces))
    again = np.empty(found.nbytes, np.uint8)
    found.write_into(again)
    assert np.array_equal(again, whole)
    with pytest.raises(RemoteProtocolError):
        encoded_of(Found(pieces[:2]))


def test_who_would_compute_it_claims_it_and_no_other_host_does(host: Host, other: Host, server: PlainServer) -> None:
    order(other, other.fetch(1, claims=True))
    other.await_ends((1, "miss"))
    order(host, host.fetch(5, claims=True))
    host.await_ends((5, "elsewhere"))
    save(other, "k", numbers(3))
    host.await_ends((5, "elsewhere"), (5, "hit"))
    hit = present(host.client.get("k", tenant="t", tensors="numpy"))
    assert is_equal(hit.record, numbers(3))
    assert server.claims == {}, "the save has ended it"


def test_a_claim_that_ends_without_a_record_passes_on(host: Host, other: Host, server: PlainServer) -> None:
    order(other, other.fetch(1, claims=True))
    other.await_ends((1, "miss"))
    order(host, host.fetch(5, claims=True))
    host.await_ends((5, "elsewhere"))
    del server.claims[NAME]  # it has expired
    host.await_ends((5, "elsewhere"), (5, "miss"))
    assert list(server.claims) == [NAME]


def test_what_is_saved_between_the_last_look_and_the_end_of_its_claim_is_found(
    host: Host, other: Host, server: PlainServer
) -> None:
    order(other, other.fetch(1, claims=True))
    other.await_ends((1, "miss"))
    claiming = threading.Event()

    def save_first(what: str) -> None:
        if what == "claim" and not claiming.is_set():
            claiming.set()
            server.before = lambda name: None
            save(other, "k", numbers(3))

    order(host, host.fetch(5, claims=True))
    host.await_ends((5, "elsewhere"))
    server.before = save_first
    host.await_ends((5, "elsewhere"), (5, "hit"))


def test_another_host_is_not_waited_for_for_ever(run_dir: Path, server: PlainServer) -> None:
    server.claims[NAME] = self_made = object()
    with a_host(run_dir, server, max_wait_s=0.05) as host:
        order(host, host.fetch(5, claims=True))
        host.await_ends((5, "elsewhere"), (5, "late"))
    assert server.claims[NAME] is self_made


def test_without_time_for_other_hosts_nothing_is_claimed(run_dir: Path, server: PlainServer) -> None:
    with a_host(run_dir, server, claim_wait_s=0.0) as host:
        order(host, host.fetch(5, claims=True))
        host.await_ends((5, "miss"))
    assert server.claims == {}


def test_a_server_that_does_not_answer_is_late_until_it_is_left_alone(
    run_dir: Path, server: PlainServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE_S", 3600.0)
    server.is_stuck.set()
    with a_host(run_dir, server) as host:
        for number in range(5):
            order(host, host.fetch(number, timeout_ms=100))
            host.await_stats(lambda stats: stats.queries == number + 1, "an end")  # noqa: B023 (it is called at once)
        num_calls = server.num_calls
        order(host, host.fetch(5))
        stats = host.await_stats(lambda stats: stats.queries == 6, "an end")
        assert (stats.gets_late, stats.gets_failed, stats.circuit_open) == (5, 1, 1)
        assert server.num_calls == num_calls
        host.await_ends(*((number, "late") for number in range(5)), (5, "failed"))


def test_a_server_that_fails_is_a_miss_that_is_said_at_once(host: Host, server: PlainServer) -> None:
    server.fault = "no"
    order(host, host.fetch(1, claims=True))
    host.await_ends((1, "failed"))
    assert server.claims == {}


@pytest.mark.parametrize(
    ("lie", "outcome"),
    [(b"nonsense", "miss"), (framed(1, b"no record"), "failed"), (framed(2, b"of another epoch"), "miss")],
    ids=["foreign", "no record", "epoch"],
)
def test_a_server_that_lies_has_nothing_put(host: Host, server: PlainServer, lie: bytes, outcome: str) -> None:
    server.epoch = 1
    server.values[NAME] = lie
    order(host, host.fetch(1))
    host.await_ends((1, outcome))
    assert host.client.get("k", tenant="t") is None


def test_what_is_under_way_when_the_frontend_goes_is_put_nowhere(host: Host, other: Host, server: PlainServer) -> None:
    save(other, "k", numbers(3))
    entered, go_on = threading.Event(), threading.Event()

    def hold(what: str) -> None:
        entered.set()
        assert go_on.wait(DEADLINE_S)

    server.before = hold
    order(host, host.fetch(1))
    assert entered.wait(DEADLINE_S)
    host.fetching.begin_life()
    go_on.set()
    host.await_stats(lambda stats: stats.queries == 1, "an end")
    order(host, host.fetch(2, "none"))
    host.await_ends((2, "miss"))
    assert host.client.get("k", tenant="t") is None


def test_a_bug_ends_its_fetches_and_no_thread(host: Host, server: PlainServer) -> None:
    def fail(what: str) -> None:
        raise ZeroDivisionError

    server.before = fail
    order(host, host.fetch(1), host.fetch(2))
    stats = host.await_stats(lambda stats: stats.gets_failed == 2, "two ends")
    assert stats.faults >= 1
    server.before = lambda what: None
    order(host, host.fetch(3))
    eventually(lambda: host.ends[-1:], lambda ends: ends == [(3, "miss")], "the end of the third")


# ---- prefetches


def test_a_prefetched_record_is_put_as_one_that_is_waited_for(host: Host, other: Host) -> None:
    save(other, "k", numbers(3))
    order(host, host.fetch(1, is_ahead=True), host.fetch(2, "none", is_ahead=True))
    eventually(lambda: sorted(host.ends), lambda ends: ends == [(1, "hit"), (2, "miss")], "both ends")
    hit = present(host.client.get("k", tenant="t", tensors="numpy"))
    assert is_equal(hit.record, numbers(3))


def test_a_call_for_prefetches_leaves_a_thread_to_what_is_waited_for(host: Host, server: PlainServer) -> None:
    """Both threads of the host would be held by the server, if both fetched ahead."""
    entered, go_on = threading.Event(), threading.Event()

    def hold(what: str) -> None:
        if not entered.is_set():
            entered.set()
            assert go_on.wait(DEADLINE_S)

    server.before = hold
    order(host, *(host.fetch(number, f"ahead {number}", is_ahead=True) for number in range(100)))
    assert entered.wait(DEADLINE_S)
    order(host, host.fetch(1000, "now"))
    host.await_ends((1000, "miss"))
    go_on.set()
    eventually(lambda: len(host.ends), lambda count: count == 101, "all others")


def test_prefetches_end_with_the_life_of_their_frontend(host: Host, server: PlainServer) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold(what: str) -> None:
        entered.set()
        assert go_on.wait(DEADLINE_S)

    server.before = hold
    order(host, *(host.fetch(number, f"ahead {number}", is_ahead=True) for number in range(100)))
    assert entered.wait(DEADLINE_S)
    host.fetching.begin_life()
    go_on.set()
    order(host, host.fetch(1000, "of the next life", is_ahead=True))
    host.await_ends((1000, "miss"))
