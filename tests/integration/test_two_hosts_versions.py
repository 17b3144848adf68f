"""A rolling update of two stores with one Redis: no order of flushes and deaths serves outputs of other weights."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest

from mmcached.cli.admin.observe import overview_at
from mmcached.client import Client
from mmcached.wire.stats import ServiceStats
from tests.integration.processes import eventually, retryably, role_pids
from tests.integration.test_two_hosts import Hosts
from tests.integration.test_two_hosts_storm import second_level_pid
from tests.second_level.servers import Server, find_program, short_folder

STEPS = ("flush a", "flush b", "kill the frontend of b", "kill the second level of b")


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    program = find_program("redis-server")
    if program is None:
        pytest.skip("redis-server is not on this machine: a package of Debian")
    with short_folder() as folder, Server(program, folder) as server, ExitStack() as stack:
        hosts = Hosts(folder, server.url, stack)
        hosts.check()
        yield hosts


class Update:
    """One rolling update: each host computes with the weights that it has, and is flushed once it has new ones."""

    def __init__(self, hosts: Hosts, number: int) -> None:
        self.hosts = hosts
        self.number = number
        self.weights = [f"v1.{number}"] * 2
        for client in hosts.clients:
            flush(client, self.weights[0])

    def do(self, step: str) -> None:
        host = "ab".index(step[-1])
        if step.startswith("flush"):
            self.weights[host] = f"v2.{self.number}"
            flush(self.hosts.clients[host], self.weights[host])
            return
        service = self.hosts.services[host]
        found = role_pids(service.process.pid)["frontend"] if "frontend" in step else [second_level_pid(service)]
        for pid in found:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)

    def ask(self) -> None:
        """Have each host ask for some records; what it finds was computed with its own weights."""
        for name in ("often", f"of {len(set(self.weights))} versions"):
            for client, weights in zip(self.hosts.clients, self.weights, strict=True):
                computed = {"weights": weights, "x": np.zeros(3)}
                found: Any = client.get_or_compute(f"{self.number} {name}", partial(dict, computed), tensors="numpy")
                assert found["weights"] == weights


def flush(client: Client, version: str) -> None:
    def ask() -> bool:
        client.invalidate(version=version)
        return True

    assert eventually(lambda: retryably(ask), bool, "a flush")


def is_found_by_both(hosts: Hosts, number: int) -> bool:
    ann, bob = hosts.clients
    key = f"{number} together {next(COUNT)}"
    return bool(ann.put(key, {"x": np.ones(3)})) and any(bob.get(key, timeout_s=1.0) is not None for _ in range(10))


COUNT = itertools.count()


@pytest.mark.parametrize("steps", [STEPS[:3], pytest.param(STEPS, marks=pytest.mark.soak)], ids=len)
def test_in_every_order_a_host_finds_what_its_own_weights_compute(hosts: Hosts, steps: tuple[str, ...]) -> None:
    for order in itertools.permutations(steps):
        update = Update(hosts, next(COUNT))
        update.ask()
        for step in order:
            update.do(step)
            update.ask()
        hosts.are_ready()
        eventually(partial(is_found_by_both, hosts, update.number), bool, f"both together after {order}")
        update.ask()


def test_a_host_with_an_older_version_says_so(hosts: Hosts) -> None:
    ann, bob = hosts.clients
    flush(ann, "old")
    flush(bob, "old")
    flush(bob, "new")
    service = hosts.services[0].run_dir

    def note() -> str:
        overview = overview_at(service)
        return "" if overview is None else overview.note

    assert "another version" in eventually(note, lambda text: "version" in text, "status says so")
    assert stats(ann).second_level.other_version == 1
    flush(ann, "new")
    eventually(note, lambda text: "version" not in text, "status says nothing more")


def stats(client: Client) -> ServiceStats:
    return eventually(lambda: retryably(client.stats), lambda found: found is not None, "figures")  # type: ignore[return-value]
