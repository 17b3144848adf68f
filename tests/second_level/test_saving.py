"""What becomes of a save: written as it lies in the store, or dropped; and no lease outlasts it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mmcached.cache.store_keys import store_key
from mmcached.second_level import saving
from mmcached.second_level.backend import BackendError, BackendLate, BackendRefused
from mmcached.second_level.records import HEAD_BYTES, Found
from mmcached.shm.ring.slot_table import expiry_of
from mmcached.wire.messages.second_level import Save
from tests.client.records import every_dtype, numbers
from tests.integration.processes import DEADLINE_S, eventually
from tests.present import present
from tests.second_level.hosts import Host, a_host
from tests.second_level.plain_server import PlainServer

NAME = store_key("t", "k")
MIB = np.zeros(1 << 20, np.uint8)


@pytest.fixture
def server() -> Iterator[PlainServer]:
    server = PlainServer()
    yield server
    server.released.set()


@pytest.fixture
def host(run_dir: Path, server: PlainServer) -> Iterator[Host]:
    with a_host(run_dir, server) as host:
        yield host


def order(host: Host, *saves: Save) -> None:
    host.saving.order(saves, time.monotonic())


def hold(server: PlainServer, what: str) -> tuple[threading.Event, threading.Event]:
    """Have the server's next such call wait; return what says that it has come, and what lets it go on."""
    entered, go_on = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        if name == what:
            entered.set()
            assert go_on.wait(DEADLINE_S)

    server.before = wait
    return entered, go_on


def test_a_record_is_saved_byte_for_byte_without_a_hit(host: Host, server: PlainServer) -> None:
    save = host.put("k", every_dtype())
    lent = present(host.first.lend(save))
    expected = lent.tobytes()
    del lent
    order(host, save)
    stats = host.await_stats(lambda stats: stats.puts_kept == 1, "a save")
    assert server.values[NAME][HEAD_BYTES:] == expected
    assert (stats.bytes_written, stats.put_latency.num, stats.waiting_saves) == (len(expected), 1, 0)
    host.service.call(host.service.desk.records.poll_hits)
    assert host.service.desk.stats().hits == 0


def test_what_is_there_already_is_not_sent_again(host: Host, server: PlainServer) -> None:
    save = host.put("k", numbers(3))
    for number in (1, 2):
        order(host, save)
        stats = host.await_stats(lambda stats: stats.puts_kept == number, "a save")  # noqa: B023 (it is called at once)
    server.values.clear()
    assert stats.bytes_written == save.place.nbytes


def test_of_a_record_that_was_replaced_the_last_one_stays(host: Host, server: PlainServer) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait(what: str) -> None:
        if what == "put" and not entered.is_set():
            entered.set()
            assert go_on.wait(DEADLINE_S)

    server.before = wait
    order(host, host.put("k", numbers(1)))
    assert entered.wait(DEADLINE_S)
    assert host.client.put("k", numbers(2), overwrite=True, tenant="t")
    replaced = host.place_of("k", "t")
    second = threading.Thread(target=host.saving.run)
    second.start()
    try:
        order(host, Save("t", "k", replaced), host.put("other", numbers(3)))
        host.await_stats(lambda stats: stats.puts_kept == 1, "the other one")
        go_on.set()
        host.await_stats(lambda stats: stats.puts_kept == 3, "all")
        lent = present(host.first.lend(Save("t", "k", replaced)))
        assert server.values[NAME][HEAD_BYTES:] == lent.tobytes()
        del lent
    finally:
        go_on.set()
        host.saving.close()
        second.join(DEADLINE_S)


def test_a_record_that_expires_is_saved_with_what_is_left_to_it(host: Host, server: PlainServer) -> None:
    save = host.put("k", numbers(1))
    order(host, msgspec.structs.replace(save, expires_at=expiry_of(3600.0)))
    host.await_stats(lambda stats: stats.puts_kept == 1, "a save")
    (found,) = host.records.get_many([NAME], deadline=time.monotonic() + DEADLINE_S)
    assert isinstance(found, Found)
    assert 3600.0 - DEADLINE_S < found.ttl_s <= 3600.1
    server.values.clear()
    order(host, msgspec.structs.replace(save, expires_at=1))
    host.await_stats(lambda stats: stats.puts_dropped == 1, "a drop")
    assert server.values == {}


def test_its_end_is_the_end_of_a_claim_of_this_host_alone(host: Host, server: PlainServer) -> None:
    server.claims[store_key("t", "theirs")] = theirs = object()
    host.fetching.order([host.fetch(1, claims=True)], time.monotonic())
    host.await_ends((1, "miss"))
    assert list(server.claims) == [store_key("t", "theirs"), NAME]
    order(host, host.put("k", numbers(3)), host.put("theirs", numbers(3)))
    host.await_stats(lambda stats: stats.puts_kept == 2, "two saves")
    assert server.claims == {store_key("t", "theirs"): theirs}


def test_what_has_gone_from_the_store_is_dropped(host: Host, server: PlainServer) -> None:
    save = host.put("k", numbers(3))
    host.client.drop("k", tenant="t")
    order(host, save)
    host.await_stats(lambda stats: stats.puts_dropped == 1, "a drop")
    assert server.values == {}


@pytest.mark.parametrize(
    "limits",
    [{"max_l2_record_mb": 0}, {"max_l2_waiting_mb": 0}],
    ids=["too large", "too many bytes"],
)
def test_what_is_beyond_a_limit_is_dropped(run_dir: Path, server: PlainServer, limits: dict[str, float]) -> None:
    with a_host(run_dir, server, **limits) as host:
        order(host, host.put("k", {"x": MIB}))
        host.await_stats(lambda stats: stats.puts_dropped == 1, "a drop")
    assert server.values == {}


def test_what_is_beyond_the_quota_of_its_tenant_is_not_saved(run_dir: Path, server: PlainServer) -> None:
    quota_bytes = HEAD_BYTES + (1 << 19) + (1 << 18)
    with a_host(run_dir, server, quota_bytes=quota_bytes) as host:
        host.fetching.order([host.fetch(1, "l", claims=True)], time.monotonic())
        host.await_ends((1, "miss"))
        first, second = (host.put(key, {"x": MIB[: 1 << 19]}) for key in "kl")
        order(host, first, second)
        stats = host.await_stats(lambda stats: stats.puts_kept + stats.puts_over_quota == 2, "both ends")
        assert (stats.puts_kept, stats.puts_over_quota, stats.puts_dropped) == (1, 1, 0)
        assert set(server.values) == {NAME}
        eventually(lambda: server.claims, lambda claims: not claims, "the end of the claim")
        order(host, first)
        host.await_stats(lambda stats: stats.puts_over_quota == 2, "a second refusal")
        assert host.client.put("l", numbers(1), tenant="u")
        order(host, Save("u", "l", host.place_of("l", "u")))
        host.await_stats(lambda stats: stats.puts_kept == 2, "another tenant's")
        assert host.service.leases == 0


@pytest.mark.parametrize(("error", "counts"), [(BackendRefused, False), (BackendLate, True)])
def test_a_failed_save_counts_for_the_quota_if_it_may_have_been_written(
    run_dir: Path, server: PlainServer, error: type[BackendError], counts: bool
) -> None:
    def fail(what: str) -> None:
        if what == "put":
            raise error("as the test wants it")

    with a_host(run_dir, server, quota_bytes=HEAD_BYTES + (1 << 19) + (1 << 18)) as host:
        first, second = (host.put(key, {"x": MIB[: 1 << 19]}) for key in "kl")
        server.before = fail
        order(host, first)
        host.await_stats(lambda stats: stats.puts_failed == 1, "a failure")
        server.before = lambda what: None
        order(host, second)
        stats = host.await_stats(lambda stats: stats.puts_kept + stats.puts_over_quota == 1, "the second end")
        assert stats.puts_over_quota == counts


def test_what_is_there_already_does_not_count_for_the_quota(run_dir: Path, server: PlainServer) -> None:
    with a_host(run_dir, server, quota_bytes=2 * HEAD_BYTES + 2 * (1 << 19) + (1 << 18)) as host:
        first, second = (host.put(key, {"x": MIB[: 1 << 19]}) for key in "kl")
        for number in (1, 2, 3):
            order(host, first)
            host.await_stats(lambda stats: stats.puts_kept == number, "a save")  # noqa: B023 (it is called at once)
        order(host, second)
        host.await_stats(lambda stats: stats.puts_kept == 4, "the other one")
        assert len(server.values) == 2


def test_what_waits_is_bounded_and_counted(run_dir: Path, server: PlainServer) -> None:
    entered, go_on = hold(server, "get_heads")
    with a_host(run_dir, server, max_l2_waiting_mb=2) as host:
        saves = [host.put(f"k{number}", {"x": MIB[: 1 << 19]}) for number in range(6)]
        order(host, saves[0])
        assert entered.wait(DEADLINE_S)
        order(host, *saves[1:])
        stats = host.stats()
        assert (stats.waiting_saves, stats.puts_dropped) == (3, 2)
        assert stats.waiting_bytes == sum(save.place.nbytes for save in saves[3:])
        go_on.set()
        stats = host.await_stats(lambda stats: stats.puts_kept == 4, "four saves")
        assert (stats.waiting_saves, stats.waiting_bytes) == (0, 0)
        assert set(server.values) == {store_key("t", f"k{number}") for number in (0, 3, 4, 5)}, "the oldest go"


def test_a_tenant_that_puts_too_much_loses_its_own_saves(run_dir: Path, server: PlainServer) -> None:
    entered, go_on = hold(server, "get_heads")
    with a_host(run_dir, server, max_l2_waiting_mb=2) as host:
        saves = [host.put(f"k{number}", {"x": MIB[: 1 << 19]}) for number in range(6)]
        assert host.client.put("q", numbers(3), tenant="quiet")
        order(host, saves[0])
        assert entered.wait(DEADLINE_S)
        order(host, Save("quiet", "q", host.place_of("q", "quiet")), *saves[1:])
        assert host.stats().puts_dropped == 2
        go_on.set()
        host.await_stats(lambda stats: stats.puts_kept == 5, "five saves")
        expected = {store_key("t", f"k{number}") for number in (0, 3, 4, 5)} | {store_key("quiet", "q")}
        assert set(server.values) == expected


def test_a_server_that_fails_costs_the_record_and_no_lease(host: Host, server: PlainServer) -> None:
    server.fault = "full"
    order(host, host.put("k", numbers(3)))
    host.await_stats(lambda stats: stats.puts_failed == 1, "a failure")
    assert host.service.leases == 0


def test_a_server_that_hangs_holds_one_lease_for_a_bounded_time(
    host: Host, server: PlainServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "PUT_S", 0.05)
    server.is_stuck.set()
    order(host, host.put("k", numbers(3)))
    host.await_stats(lambda stats: stats.puts_failed == 1, "a failure")
    eventually(lambda: host.service.leases, lambda leases: leases == 0, "no lease")


def test_what_was_flushed_meanwhile_is_not_saved(host: Host, server: PlainServer) -> None:
    entered, go_on = hold(server, "get_heads")
    order(host, host.put("k", numbers(3)))
    assert entered.wait(DEADLINE_S)
    order(host, host.put("l", numbers(4)))
    host.saving.begin_life()
    server.before = lambda name: None
    host.records.flush(deadline=time.monotonic() + DEADLINE_S)
    go_on.set()
    host.await_stats(lambda stats: stats.puts_dropped == 2, "two drops")
    assert server.values == {}


def test_the_end_waits_for_saves_and_says_what_it_drops(host: Host, server: PlainServer) -> None:
    entered, go_on = hold(server, "get_heads")
    order(host, host.put("k", numbers(3)), host.put("l", numbers(4)))
    assert entered.wait(DEADLINE_S)
    assert host.saving.drain(0.0) == 2
    assert host.stats().puts_dropped == 1
    go_on.set()
    assert host.saving.drain(DEADLINE_S) == 0
    assert list(server.values) == [NAME]
