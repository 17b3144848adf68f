"""The second level beside a real frontend: what one host computes another one finds, and no death leaves anything."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mmcached.cache.store_keys import store_key
from mmcached.cli.watch.shown_figures import note_of
from mmcached.client import Client
from mmcached.second_level import breaker, process
from mmcached.second_level.process import SecondLevelProcess
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from mmcached.shm.crash_points import VARIABLE
from mmcached.shm.stats.page import StatsPage, StatsPageReader
from mmcached.wire.errors import MmcachedError
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.parts import MIN_PLACED_BYTES as MIN_BYTES
from mmcached.wire.stats import RoleName, SecondLevelStats, ServiceStats
from tests.client.records import is_equal, numbers
from tests.integration.processes import DEADLINE_S, eventually
from tests.second_level.frontends import LIMITS, NOWHERE, Fleet, FrontendThread, config_of, second_level_process
from tests.second_level.servers import Server

ROLE = RoleName("second_level")
LARGE = {"x": np.arange(4 * MIN_BYTES, dtype=np.uint8)}


@pytest.fixture
def fleet(run_dir: Path) -> Iterator[Fleet]:
    with Fleet(run_dir) as fleet:
        yield fleet
        fleet.server.released.set()


def never() -> dict[str, Any]:
    raise AssertionError("it was computed before")


def kept(level: Any) -> int:
    stats: SecondLevelStats = level.stats()
    return stats.puts_kept


@pytest.mark.parametrize("record", [numbers(3), LARGE], ids=["small", "large"])
def test_what_one_host_computes_another_one_finds(fleet: Fleet, record: dict[str, Any]) -> None:
    (ann, of_ann), (bob, of_bob) = fleet.host("a"), fleet.host("b")
    ann.get_or_compute("k", lambda: record)
    eventually(lambda: kept(of_ann), lambda count: count == 1, "a save")
    assert is_equal(bob.get_or_compute("k", never, tensors="numpy"), record)
    eventually(lambda: of_bob.stats().gets_hit, lambda count: count == 1, "a hit")
    bob.get_or_compute("l", lambda: record)
    eventually(lambda: kept(of_bob), lambda count: count == 1, "what was fetched is not saved again")
    assert fleet.server.claims == {}


def seed_of(client: Client, key: str) -> object:
    hit = client.get(key)
    return hit and hit["seed"]


def test_a_record_that_is_replaced_is_replaced_there_too(fleet: Fleet) -> None:
    (ann, of_ann), (bob, _), (eve, _) = (fleet.host(name) for name in "abe")
    ann.put("k", numbers(1))
    eventually(lambda: kept(of_ann), lambda count: count == 1, "a save")
    assert seed_of(bob, "k") == 1
    assert ann.put("k", numbers(2), overwrite=True)
    eventually(lambda: kept(of_ann), lambda count: count == 2, "another save")
    assert seed_of(eve, "k") == 2
    assert seed_of(bob, "k") == 1, "what a host has fetched it has"
    assert bob.drop("k", local=True)
    assert seed_of(bob, "k") == 2


def test_a_record_that_expires_does_so_on_other_hosts(fleet: Fleet) -> None:
    (ann, of_ann), (bob, _) = fleet.host("a"), fleet.host("b")
    assert ann.put("k", numbers(1), ttl_s=1.0)
    assert ann.put("stays", numbers(2), ttl_s=3600.0)
    # On a busy machine the first may expire before it is saved.
    eventually(lambda: kept(of_ann) + of_ann.stats().puts_dropped, lambda count: count == 2, "two saves")
    assert seed_of(bob, "stays") == 2
    eventually(lambda: bob.get("k"), lambda hit: hit is None, "its end")
    assert ann.get("k") is None
    assert seed_of(bob, "stays") == 2


def test_a_record_of_another_host_saves_what_it_cost_there(fleet: Fleet, run_dir: Path) -> None:
    ann, of_ann = fleet.host("a")
    frontend = fleet.enter_context(FrontendThread(run_dir / "b", config_of()))
    fleet.level(frontend)
    bob = fleet.enter_context(Client(frontend.directory.path, tenant="t"))
    assert ann.put("k", numbers(1), cost_s=2.5)
    eventually(lambda: kept(of_ann), lambda count: count == 1, "a save")
    assert seed_of(bob, "k") == 1
    assert frontend.frontend.store.records.saved.cost_s(store_key("t", "k")) == pytest.approx(2.5)


def test_a_flush_reaches_the_second_level_and_fails_where_it_does_not(fleet: Fleet) -> None:
    ann, of_ann = fleet.host("a")
    bob, _ = fleet.host("b")
    ann.get_or_compute("k", lambda: numbers(1))
    eventually(lambda: kept(of_ann), lambda count: count == 1, "a save")
    bob.flush()
    assert is_equal(bob.get_or_compute("k", lambda: numbers(2), tensors="numpy"), numbers(2))
    fleet.server.fault = "the server is full"
    with pytest.raises(MmcachedError, match="the server is full"):
        ann.invalidate()
    stats = of_ann.stats()
    assert (stats.flushes_done, stats.flushes_failed >= 1) == (0, True)


def test_a_new_server_has_an_epoch_before_anything_is_ordered_and_only_one(fleet: Fleet) -> None:
    calls: list[str] = []
    fleet.server.before = calls.append
    (_, of_ann), _ = fleet.host("a"), fleet.host("b")
    assert fleet.server.epoch > 0
    assert calls.count("raise_epoch") == 1
    assert of_ann.stats().queries == 0


def test_the_next_frontend_has_orders_for_the_same_process(run_dir: Path, fleet: Fleet) -> None:
    fleet.server.released.set()
    first = FrontendThread(run_dir / "a", config_of())
    level = fleet.level(first)
    first.close()
    with FrontendThread(run_dir / "a", config_of()) as second, Client(run_dir / "a") as client:
        second.await_level()
        client.get_or_compute("k", lambda: LARGE)
        eventually(lambda: kept(level), lambda count: count == 1, "a save")
        assert level.is_alive
        client.drop("k", local=True)
        assert is_equal(client.get_or_compute("k", never, tensors="numpy"), LARGE)


def test_without_a_server_everything_is_a_miss_and_saves_are_lost(fleet: Fleet) -> None:
    ann, of_ann = fleet.host("a")
    fleet.server.fault = "no server"
    for number in range(6):
        assert is_equal(ann.get_or_compute(f"k{number}", lambda: numbers(1)), numbers(1))
    eventually(lambda: of_ann.stats().puts_failed, lambda count: count == 6, "six losses")
    assert (of_ann.stats().circuit_open, of_ann.is_alive) == (1, True)


@pytest.mark.parametrize("fault", ["fails", "is silent"])
def test_an_outage_is_noticed_without_traffic_and_so_is_its_end(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    for name, seconds in (("PROBE_INTERVAL_S", 0.02), ("PROBE_S", 0.02)):
        monkeypatch.setattr(process, name, seconds)
    _, level = fleet.host("a")
    assert note_of(ServiceStats(second_level=level.stats())) == ""
    if fault == "fails":
        fleet.server.fault = "no server"
    else:
        fleet.server.is_stuck.set()
    stats = eventually(level.stats, lambda stats: stats.circuit_open == 1, "an open circuit")
    words = "is not reached" if fault == "fails" else "does not answer in time"
    assert words in note_of(ServiceStats(second_level=stats))
    fleet.server.fault = ""
    fleet.server.is_stuck.clear()
    stats = eventually(level.stats, lambda stats: stats.circuit_open == 0, "a closed circuit")
    assert stats.queries == 0, "nobody has asked for anything"
    assert note_of(ServiceStats(second_level=stats)) == ""


def test_a_flush_of_another_host_is_noticed_without_traffic(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PROBE_INTERVAL_S", 0.02)
    (ann, _), (bob, of_bob) = fleet.host("a"), fleet.host("b")
    ann.flush()
    stats = eventually(of_bob.stats, lambda stats: stats.apart == 1, "a host that is apart")
    assert "another host was flushed" in note_of(ServiceStats(second_level=stats))
    bob.flush()
    assert of_bob.stats().apart == 0


def test_a_flush_does_not_wait_for_an_open_circuit(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "FIRST_PAUSE_S", 3600.0)
    ann, level = fleet.host("a")
    fleet.server.fault = "no server"
    for number in range(6):
        assert ann.get(f"k{number}") is None
    assert level.stats().circuit_open == 1
    fleet.server.fault = ""
    ann.flush()
    assert level.stats().circuit_open == 0


def test_a_full_server_is_said_to_be_full(run_dir: Path, own_server: Server) -> None:
    with a_client(run_dir, own_server, LIMITS) as (client, level), own_server.client() as redis:
        redis.config_set("maxmemory", 1)
        client.put("k", numbers(1))
        stats = eventually(level.stats, lambda stats: stats.trouble > 0, "a trouble")
        assert "no memory left" in note_of(ServiceStats(second_level=stats))


@pytest.mark.parametrize("seed", range(3))
def test_after_any_flushes_and_one_more_of_each_host_nothing_of_before_is_served(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each host computes with weights of its own version, which rises with each of its flushes."""
    monkeypatch.setattr(process, "PROBE_INTERVAL_S", 0.02)
    rng, keys = random.Random(seed), [f"k{number}" for number in range(6)]
    clients = [fleet.host(name)[0] for name in "abc"]
    versions = [0, 0, 0]

    def compute(host: int, key: str) -> tuple[int, int]:
        made = {"by": host, "version": versions[host]}
        found = clients[host].get_or_compute(key, lambda: made)
        return found["by"], found["version"]

    def flush(host: int) -> None:
        versions[host] += 1
        clients[host].invalidate()

    for _ in range(60):
        host = rng.randrange(3)
        if rng.random() < 0.15:
            flush(host)
        else:
            compute(host, rng.choice(keys))
    for host in rng.sample(range(3), 3):
        flush(host)
        compute(rng.randrange(3), rng.choice(keys))

    def old() -> list[tuple[int, int]]:
        found = [compute(host, key) for key in keys for host in range(3)]
        return [(by, version) for by, version in found if version != versions[by]]

    eventually(old, lambda found: not found, "only what was computed since")


# ---- claims among hosts: the server's never expire, so who is not told waits for ever


def fail() -> dict[str, Any]:
    raise ZeroDivisionError


def await_wait(level: Any) -> None:
    """Wait until a host has found that another one computes."""
    eventually(lambda: level.stats().claims_elsewhere, lambda count: count > 0, "a wait for another host")


def computing(fleet: Fleet, client: Client, ends: threading.Event, **how: Any) -> Callable[[], object]:
    """Have a client compute `k` until an event; return what waits for its thread."""
    began = threading.Event()

    def compute() -> dict[str, Any]:
        began.set()
        assert ends.wait(DEADLINE_S)
        return how["compute"]()  # type: ignore[no-any-return]

    def run() -> None:
        with suppress(ZeroDivisionError):
            client.get_or_compute("k", compute)

    pool = fleet.enter_context(ThreadPoolExecutor(1))
    done = pool.submit(run)
    assert began.wait(DEADLINE_S)
    return lambda: done.result(DEADLINE_S)


@pytest.mark.parametrize("why", ["it raises", "its record is too large", "its host is flushed"])
def test_who_waits_for_another_host_computes_as_soon_as_the_record_will_not_come(fleet: Fleet, why: str) -> None:
    limits = msgspec.structs.replace(LIMITS, l2_claim_wait_ms=600_000)  # longer than this test waits
    small = msgspec.structs.replace(limits, max_l2_record_mb=0) if why == "its record is too large" else limits
    (ann, _), (bob, of_bob) = fleet.host("a", limits=small), fleet.host("b", limits=limits)
    ends = threading.Event()
    done = computing(fleet, ann, ends, compute=fail if why == "it raises" else lambda: numbers(1))
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(bob.get_or_compute, "k", lambda: numbers(2), tensors="numpy")
        await_wait(of_bob)
        if why == "its host is flushed":
            ann.invalidate()
        ends.set()
        done()
        assert is_equal(found.result(DEADLINE_S / 2), numbers(2)), "at once, not when the client waits no more"


def test_what_takes_longer_than_a_claim_lasts_is_computed_once(run_dir: Path, server: Server) -> None:
    limits = msgspec.structs.replace(LIMITS, l2_claim_wait_ms=150)
    ends, num_computed = threading.Event(), 0

    def compute() -> dict[str, Any]:
        nonlocal num_computed
        num_computed += 1
        assert ends.wait(DEADLINE_S)
        return numbers(3)

    with ExitStack() as stack:
        clients = [stack.enter_context(a_client(run_dir / name, server, limits))[0] for name in "ab"]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        stack.callback(ends.set)
        found = [pool.submit(client.get_or_compute, "k", compute, tensors="numpy") for client in clients]
        redis = stack.enter_context(server.client())
        lives = [redis.pttl(f"mmcached:3:claim:{store_key('', 'k')}")]

        def num_renewals() -> int:
            lives.append(redis.pttl(f"mmcached:3:claim:{store_key('', 'k')}"))
            return sum(later > sooner > 0 for sooner, later in pairwise(lives))

        eventually(num_renewals, lambda count: count > 5, "a claim that is renewed")
        ends.set()
        assert all(is_equal(each.result(DEADLINE_S), numbers(3)) for each in found)
    assert num_computed == 1


@contextmanager
def a_client(path: Path, server: Server, limits: LimitsConfig) -> Iterator[tuple[Client, SecondLevelProcess]]:
    """Run a host with a real server behind it."""
    config = config_of(server.url, limits)
    records = SharedRecords(make_backend(server.url), max_bytes=1 << 28, ttl_s=60.0)
    with FrontendThread(path, config) as frontend, SecondLevelProcess(frontend.directory, config, records) as level:
        level.start()
        frontend.await_level()
        with Client(path) as client:
            yield client, level


# ---- as a process


@pytest.fixture
def host(run_dir: Path, own_server: Server) -> Iterator[FrontendThread]:
    with FrontendThread(run_dir, config_of(own_server.url)) as frontend:
        yield frontend


def kinds_in(server: Server) -> list[bytes]:
    """Return what lies in a server: the second word of each key."""
    with server.client() as client:
        return sorted(name.split(b":")[2] for name in client.scan_iter())


def test_a_process_killed_in_the_middle_of_a_put_leaves_nothing(host: FrontendThread, own_server: Server) -> None:
    with Client(host.directory.path) as client:
        with second_level_process(host.directory):
            host.await_level()
            client.get_or_compute("k", lambda: LARGE)
            eventually(lambda: kinds_in(own_server), lambda kinds: kinds == [b"epoch", b"record"], "a save")
        host.await_loss()
        client.drop("k", local=True)
        with second_level_process(host.directory, **{VARIABLE: "put.mid_payload"}) as process:
            host.await_level()

            def fetch() -> int | None:
                assert is_equal(client.get_or_compute("k", lambda: LARGE, tensors="numpy"), LARGE)
                client.drop("k", local=True)
                return process.poll()

            # Its first puts travel as frames, while its nursery is populated.
            assert eventually(fetch, lambda status: status is not None, "a put into its nursery") == -signal.SIGKILL
            host.await_rest()


def test_a_process_killed_in_the_middle_of_a_save_holds_no_lease(host: FrontendThread, own_server: Server) -> None:
    with Client(host.directory.path) as client, second_level_process(host.directory) as process:
        host.await_level()
        own_server.stop()
        assert client.put("k", LARGE)
        eventually(lambda: host.stats.ring.leases, lambda leases: leases == 1, "a lease of the save")
        process.kill()
        host.await_rest()
        own_server.go_on()
        assert client.put("l", LARGE)


def test_a_process_ends_in_order_and_says_nothing_secret(run_dir: Path) -> None:
    with (
        FrontendThread(run_dir, config_of(log_level="debug")) as frontend,
        StatsPage.create(frontend.directory.stats_page) as page,
        second_level_process(frontend.directory) as process,
        StatsPageReader(page.path) as reader,
        Client(run_dir) as client,
    ):
        frontend.await_level()
        client.get_or_compute("k", lambda: numbers(1))
        eventually(lambda: reader.read().get(ROLE), has_failed, "a failed fetch on the page")
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert b"hunter2" in NOWHERE.encode()
    assert b"hunter2" not in command + log
    assert os.stat(frontend.directory.config).st_mode & 0o077 == 0


def has_failed(snapshot: Any) -> bool:
    return snapshot is not None and snapshot.is_attached and snapshot.stats.gets_failed + snapshot.stats.gets_late > 0


@pytest.mark.parametrize(
    ("url", "words"),
    [("redos://user:hunter2@host", "must begin with one of"), ("redis://user:hunter2@host/x", "database")],
)
def test_serve_refuses_what_is_no_server_without_its_password(run_dir: Path, url: str, words: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "mmcached", "serve", "--run-dir", str(run_dir), "--workers", "0", "--store-l2", url],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 2
    assert "store_l2 = " in ended.stderr
    assert words in ended.stderr
    assert "hunter2" not in ended.stderr
