"""Two stores as `mmcached serve` runs them, and one Redis, by what an operator of a fleet asks of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mmcached.cache.store_keys import store_key
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.second_level.name_lists import NUM_PLACES, names_in, place_name
from mmcached.second_level.namespaces import key_prefix
from mmcached.second_level.records import Found
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from mmcached.wire.config import GIB
from mmcached.wire.limits import LimitsConfig
from tests.integration.processes import DEADLINE_S, eventually, role_pids, small_config
from tests.integration.test_two_hosts import Hosts, is_right, record
from tests.integration.test_two_hosts_storm import second_level_pid
from tests.second_level.servers import Server, find_program, short_folder

PATIENT = LimitsConfig(l2_timeout_ms=20_000, l2_claim_wait_ms=20_000, flush_interval_s=0.0)
NUM = 20


@pytest.fixture(scope="module", params=["redis-server", "valkey-server"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    program = find_program(request.param)
    if program is None:
        pytest.skip(f"{request.param} is not on this machine: a package of Debian")
    with short_folder() as folder, Server(program, folder) as server:
        yield server


@pytest.fixture
def hosts(server: Server) -> Iterator[Hosts]:
    with short_folder() as folder, ExitStack() as stack:
        with server.client() as client:
            client.flushall()
        hosts = Hosts(folder, server.url, stack, PATIENT)
        hosts.check()
        yield hosts


def kill(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def computed_on(client: Client, server: Server, name: str, namespace: str = "") -> list[str]:
    """Have a host compute records, and wait until they are saved; return their keys."""
    keys = [f"{name} {number}" for number in range(NUM)]
    for key in keys:
        assert client.put(key, record(key))
    eventually(lambda: num_saved(server, keys, namespace), lambda count: count == NUM, "all saves")
    return keys


def num_saved(server: Server, keys: list[str], namespace: str = "", *, tenant: str = "") -> int:
    with server.client() as client:
        names = [f"{key_prefix(namespace)}record:{store_key(tenant, key)}" for key in keys]
        return int(client.exists(*names))


def is_here(client: Client, key: str) -> bool:
    """Whether a host has a record by itself, and the right one."""
    hit = client.get(key, local=True, tensors="numpy")
    assert hit is None or is_right(hit, key)
    return hit is not None


def test_records_are_prefetched_also_around_deaths(hosts: Hosts, server: Server) -> None:
    ann, bob = hosts.clients
    keys = computed_on(ann, server, "first")
    assert bob.prefetch(keys) == NUM
    eventually(lambda: [is_here(bob, key) for key in keys], all, "all records")
    keys = computed_on(ann, server, "second")
    bob.prefetch(keys)
    kill(*role_pids(hosts.services[1].process.pid)["frontend"])
    hosts.check()

    def are_here() -> bool:
        bob.prefetch(keys)
        return all(is_here(bob, key) for key in keys)

    eventually(are_here, bool, "all records, after the next frontend was asked")


def test_a_drop_reaches_all_hosts_also_around_deaths(hosts: Hosts, server: Server) -> None:
    ann, bob = hosts.clients
    keys = computed_on(ann, server, "dropped")
    assert bob.prefetch(keys) == NUM
    eventually(lambda: [is_here(bob, key) for key in keys], all, "all records")
    assert all(bob.drop(key) for key in keys[:5])
    assert num_saved(server, keys) == NUM - 5
    assert all(bob.get(key) is None for key in keys[:5])
    eventually(lambda: [is_here(ann, key) for key in keys[:5]], lambda found: not any(found), "the other copies' end")
    kill(second_level_pid(hosts.services[0]))
    assert all(bob.drop(key) for key in keys[5:10])
    eventually(lambda: [is_here(ann, key) for key in keys[5:10]], lambda found: not any(found), "their end")
    kill(*role_pids(hosts.services[0].process.pid)["frontend"])
    assert all(bob.drop(key) for key in keys[10:15])
    eventually(lambda: [is_here(ann, key) for key in keys[10:15]], lambda found: not any(found), "their end")
    kill(second_level_pid(hosts.services[1]))
    eventually(lambda: [bob.drop(key) for key in keys[15:]], all, "a process that confirms")
    eventually(lambda: [is_here(ann, key) for key in keys[15:]], lambda found: not any(found), "their end")
    for client in hosts.clients:
        assert all(client.get(key) is None for key in keys)
    assert ann.put(keys[0], record(keys[0]))
    eventually(lambda: bob.get(keys[0]) is not None, bool, "what was put later")


def names_told(server: Server) -> set[str]:
    """Return the names on the lists that hosts have saved."""
    with SharedRecords(make_backend(server.url), max_bytes=1 << 20, ttl_s=60.0) as records:
        places = [place_name(number) for number in range(NUM_PLACES)]
        found = records.get_many(places, deadline=time.monotonic() + DEADLINE_S)
    return {name for each in found if isinstance(each, Found) for name in names_in(b"".join(each.pieces))}


def test_a_new_host_is_warmed_up_also_around_deaths(server: Server) -> None:
    with short_folder() as folder, ExitStack() as stack:
        with server.client() as client:
            client.flushall()

        def host(name: str, *, store_warm_up: bool = True) -> tuple[ChildService, Client]:
            config = small_config(
                world_size=0,
                store_l2=server.url,
                store_warm_up=store_warm_up,
                limits=PATIENT,
                restart_backoff_s=0.05,
                max_restarts=1000,
            )
            service = stack.enter_context(ChildService(folder / name, config, folder / f"{name}.json"))
            return service, stack.enter_context(Client(service.run_dir))

        _, ann = host("a")
        keys = computed_on(ann, server, "warm")
        wanted = {store_key("", key) for key in keys}
        # Again and again, because single hits may be lost to the frontend.
        eventually(lambda: all(is_here(ann, key) for key in keys) and wanted <= names_told(server), bool, "the list")
        _, bob = host("b")
        eventually(lambda: [is_here(bob, key) for key in keys], all, "all records, unasked")
        assert bob.stats().store.fetches.warmed >= NUM
        _, off = host("off", store_warm_up=False)
        killed, carl = host("c")
        kill(second_level_pid(killed))
        kill(*role_pids(killed.process.pid)["frontend"])
        eventually(lambda: [is_here(carl, key) for key in keys], all, "all records, around deaths")
        assert not any(is_here(off, key) for key in keys)


def test_two_fleets_on_one_server_neither_find_nor_flush_each_other(server: Server) -> None:
    with short_folder() as folder, ExitStack() as stack:
        fleets = {}
        for name in ("blue", "green"):
            (folder / name).mkdir()
            fleets[name] = Hosts(folder / name, f"{server.url}?namespace={name}", stack, PATIENT)
        for fleet in fleets.values():
            fleet.check()
        blue, green = fleets.values()
        keys = computed_on(blue.clients[0], server, "of blue", "blue")
        assert all(green.clients[0].get(key) is None for key in keys)
        blue.clients[0].invalidate()
        assert eventually(lambda: blue.clients[1].stats().second_level.apart, bool, "a host that is apart")
        green.check()
        assert not any(client.stats().second_level.apart for client in green.clients)


def test_a_tenant_beyond_its_quota_saves_no_more_and_others_do(server: Server) -> None:
    with short_folder() as folder, ExitStack() as stack:
        with server.client() as client:
            client.flushall()
        hosts = Hosts(folder, server.url, stack, PATIENT, store_l2_tenant_quota_gb=10.5 * 100_000 / GIB)
        hosts.check()
        one, other = hosts.clients
        keys = [f"{number:02}" for number in range(NUM)]
        for key in keys:
            assert one.put(key, record(key), tenant="ann")
        eventually(lambda: one.stats().second_level.puts_over_quota, lambda count: count == NUM - 10, "refused saves")
        eventually(lambda: num_saved(server, keys, tenant="ann"), lambda count: count == 10, "saves within the quota")
        for key in keys[:5]:
            assert one.put(key, record(key), tenant="bob")
        eventually(lambda: num_saved(server, keys[:5], tenant="bob"), lambda count: count == 5, "another tenant's")
        assert all(one.get(key, local=True, tenant="ann") is not None for key in keys)
        assert sum(other.get(key, tenant="ann") is not None for key in keys) == 10
        assert other.put("more", record("more"), tenant="ann")
        eventually(lambda: num_saved(server, ["more"], tenant="ann"), lambda count: count == 1, "the other host's own")
        assert num_saved(server, keys, tenant="ann") == 10
