"""Two stores as `mmcached serve` runs them, and one Redis, by what an operator of a fleet asks of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from mmcached.cache.store_keys import store_key
from mmcached.client import Client
from mmcached.second_level.namespaces import key_prefix
from mmcached.wire.limits import LimitsConfig
from tests.integration.processes import eventually, role_pids
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


def num_saved(server: Server, keys: list[str], namespace: str = "") -> int:
    with server.client() as client:
        names = [f"{key_prefix(namespace)}record:{store_key('', key)}" for key in keys]
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
