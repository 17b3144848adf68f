"""`make soak`: 32 clients on two hosts, and a server between them to which everything happens; each byte is judged."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.errors import SecondLevelNotFlushed
from mmcached.wire.limits import LimitsConfig
from tests.integration.json_child import crowd
from tests.integration.processes import descendants, eventually
from tests.integration.test_sidecar import child_of
from tests.integration.test_two_hosts import FAULTS, Hosts
from tests.second_level.servers import Server, find_program, short_folder

pytestmark = pytest.mark.soak

NUM_CLIENTS = 32
STORM_S = 60.0
AS_USUAL = LimitsConfig(flush_interval_s=0.0)


def second_level_pid(service: ChildService) -> int | None:
    """Return the process of a service's second level."""
    for pid in descendants(service.process.pid):
        try:
            if b"second-level" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        except FileNotFoundError:
            continue
    return None


def kill(server: Server) -> None:
    server.kill()
    server.start()


def test_a_storm(run_dir: Path, draw_seeds: Callable[[int], range]) -> None:
    program = find_program("redis-server")
    if program is None:
        pytest.skip("redis-server is not on this machine: a package of Debian")
    rng = random.Random(draw_seeds(1)[0])
    with ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        server = stack.enter_context(Server(program, folder, "--maxmemory-policy", "noeviction"))
        hosts = Hosts(run_dir, server.url, stack, AS_USUAL)
        start = lambda number: child_of("traffic", hosts.services[number % 2].run_dir, number)  # noqa: E731
        clients = stack.enter_context(crowd(start, NUM_CLIENTS))
        until, num_faults = time.monotonic() + STORM_S, 0
        while time.monotonic() < until:
            num_faults += 1
            strike(hosts, server, rng)
            assert clients.are_alive()
        assert clients.end()["failures"] == 0
        assert num_faults > 10
        for client in hosts.clients:  # a host that was not flushed since the other one was does not use the server
            eventually(lambda: _is_flushed(client), bool, "a flush")  # noqa: B023
        hosts.check()


def _is_flushed(client: Client) -> bool:
    try:
        client.flush()
    except SecondLevelNotFlushed:
        return False
    return True


def strike(hosts: Hosts, server: Server, rng: random.Random) -> None:
    """Do something to the server, to a process beside it, or to what both have; see that the services go on."""
    fault = rng.choice([*FAULTS, "killed", "process killed", "flush", "nothing"])
    if fault == "killed":
        kill(server)
    elif fault == "process killed":
        if (pid := second_level_pid(rng.choice(hosts.services))) is not None:
            os.kill(pid, signal.SIGKILL)
    elif fault == "flush":
        with contextlib.suppress(SecondLevelNotFlushed):
            rng.choice(hosts.clients).flush()
    elif fault in FAULTS:
        begin, end = FAULTS[fault]
        begin(server)
        for client in hosts.clients:
            client.get("nobody's")
        time.sleep(rng.uniform(0.0, 1.0))  # the length of a fault
        end(server)
    hosts.are_ready()
