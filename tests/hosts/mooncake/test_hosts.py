"""Two services as two hosts, and one Mooncake Store: what one has put the other finds, whatever its master does."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.cli.admin.observe import fetch
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.limits import LimitsConfig
from tests.hosts.mooncake.conftest import LONG_S, within
from tests.hosts.mooncake.stores import Lender, Master
from tests.integration.processes import DEADLINE_S, small_config

LIMITS = LimitsConfig(l2_timeout_ms=500, l2_claim_wait_ms=20_000, flush_interval_s=0.0)


def record(key: str, num_bytes: int = 1_000_000) -> dict[str, Any]:
    """Return what is computed under a key; of another key it is another."""
    seed = int.from_bytes(key.encode(), "little") % (1 << 63)
    return {"key": key, "x": np.random.default_rng(seed).integers(0, 256, num_bytes, np.uint8)}


def is_right(found: Any, key: str) -> bool:
    return bool(found["key"] == key and np.array_equal(found["x"], record(key)["x"]))


class Hosts:
    """Two stores as `mmcached serve` runs them, and a client of each."""

    def __init__(self, folder: Path, url: str, stack: ExitStack) -> None:
        config = small_config(world_size=0, store_l2=url, limits=LIMITS, restart_backoff_s=0.05)
        self.logs = [folder / f"{name}.log" for name in "ab"]
        self.services = [
            stack.enter_context(ChildService(log.with_suffix(""), config, log.with_suffix(".json"), log_file=log))
            for log in self.logs
        ]
        self.ann, self.bob = [stack.enter_context(Client(one.run_dir)) for one in self.services]
        self._names = (f"record {number}" for number in itertools.count())
        self.computed: list[str] = []

    def compute(self, key: str) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            self.computed.append(key)
            return record(key)

        return run

    def ask_both(self) -> int:
        """Have both ask for a record that nobody has; return how often it was computed."""
        key = next(self._names)
        for client in (self.ann, self.bob):
            assert is_right(client.get_or_compute(key, self.compute(key), tensors="numpy"), key)
        return self.computed.count(key)

    def await_each_other(self) -> None:
        """Wait until what one has computed is found by the other."""
        deadline = within(LONG_S)
        while self.ask_both() != 1:
            assert time.monotonic() < deadline, "the hosts do not find each other's records"
            self.check_ready()

    def check_ready(self) -> None:
        for service in self.services:
            assert fetch(service.run_dir, "/readyz", DEADLINE_S).startswith(b"ready")


@pytest.fixture
def hosts(master: Master, run_dir: Path) -> Iterator[Hosts]:
    with Lender(master), ExitStack() as stack:
        hosts = Hosts(run_dir, master.url, stack)
        hosts.await_each_other()
        yield hosts


def test_what_becomes_of_the_master_costs_what_it_held_and_nothing_else(hosts: Hosts, master: Master) -> None:
    master.stop()
    assert [hosts.ask_both() for _ in range(10)] == [2] * 10
    hosts.check_ready()
    master.go_on()
    hosts.await_each_other()

    master.kill()
    assert [hosts.ask_both() for _ in range(10)] == [2] * 10
    hosts.check_ready()
    master.start()
    hosts.await_each_other()


def test_a_flush_on_one_host_is_one_of_the_second_level(hosts: Hosts) -> None:
    assert hosts.ask_both() == 1
    (last,) = hosts.computed[-1:]
    hosts.bob.flush()
    assert hosts.bob.get(last, tensors="numpy") is None
    assert hosts.ann.get(last, tensors="numpy") is not None, "its own store was not flushed"
    assert hosts.ask_both() == 2, "a host that was not flushed neither finds nor saves"
    hosts.ann.flush()
    hosts.await_each_other()


@pytest.mark.parametrize("signals", ["stop", "kill"])
def test_a_service_ends_in_order_while_calls_are_stuck(master: Master, run_dir: Path, signals: str) -> None:
    with ExitStack() as stack:
        hosts = Hosts(run_dir, master.url.replace("segment_mb=0", "segment_mb=64"), stack)
        hosts.await_each_other()
        getattr(master, signals)()
        assert [hosts.ask_both() for _ in range(4)] == [2] * 4
        assert [service.stop() for service in hosts.services] == [0, 0]
    for log in hosts.logs:
        said = log.read_text()
        assert "terminate called" not in said
        assert "did not end in time" not in said
