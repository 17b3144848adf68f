"""Threads of two hosts save and find records while their server dies, stalls, is emptied, full and damaged: minutes."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from redis.exceptions import RedisError

from mmcached.second_level.backend import BackendError
from mmcached.second_level.records import Found
from mmcached.second_level.shared_records import SharedRecords
from tests.second_level.conftest import MakeRecords
from tests.second_level.servers import Server

STORM_S = 60.0
CALL_S = 0.2
THREADS_PER_HOST = 3
NAMES = [f"{number:064x}" for number in range(40)]


def new_record(name: str, host: int, rng: random.Random) -> bytes:
    """Return a record that says how its bytes must go on: its name, which host made it, when, a seed."""
    seed, nbytes = rng.getrandbits(32), rng.choice([10, 1000, 100_000, 3_000_000])
    head = np.array([int(name, 16), host, time.monotonic_ns(), seed, nbytes], np.int64).tobytes()
    return head + np.random.default_rng(seed).bytes(nbytes)


def origin_of(name: str, record: bytes) -> tuple[int, int]:
    """Return which host has made a record, and when; fail on a wrong byte."""
    its_name, host, came_ns, seed, nbytes = np.frombuffer(record[:40], np.int64).tolist()
    assert its_name == int(name, 16)
    assert record[40:] == np.random.default_rng(seed).bytes(nbytes)
    return host, came_ns


class _Host:
    """One host's threads, and what they saw; the first failure ends them all.

    Args:
        flushed_at: when the last flush of each host has begun, of those that were confirmed.
    """

    def __init__(self, number: int, records: SharedRecords, flushed_at: list[int]) -> None:
        self.seen: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self.is_over = False
        self._records = records
        self._number = number
        self._flushed_at = flushed_at
        self._not_before = list(flushed_at)
        self._flushing = threading.Lock()
        rngs = [random.Random(1000 * number + thread) for thread in range(THREADS_PER_HOST)]
        self.threads = [threading.Thread(target=self._run, args=(rng,)) for rng in rngs]

    def _run(self, rng: random.Random) -> None:
        while not self.is_over:
            try:
                self._act(rng, time.monotonic() + CALL_S)
            except BackendError as error:
                self.seen[error.code] += 1
                time.sleep(0.001)
            except BaseException as failure:
                self.failures.append(failure)
                return

    def _act(self, rng: random.Random, deadline: float) -> None:
        name, as_of = rng.choice(NAMES), self._records.scope
        match rng.choices(("get", "save", "claim", "flush"), (60, 40, 5, 3))[0]:
            case "get":
                not_before = list(self._not_before)
                for found in self._records.get_many([name], deadline=deadline):
                    if isinstance(found, Found):
                        host, came_ns = origin_of(name, b"".join(found.pieces))
                        assert came_ns > not_before[host], "a record from before a flush of its host"
                    self.seen["found" if isinstance(found, Found) else found.reason] += 1
            case "save":
                if as_of:
                    record = new_record(name, self._number, rng)
                    self.seen[self._records.save(name, [record], as_of=as_of, deadline=deadline)] += 1
                else:
                    self._records.probe(deadline=deadline)
            case "claim":
                self.seen[f"claim {self._records.claim(name, ttl_s=0.1, deadline=deadline)}"] += 1
            case _:
                with self._flushing:
                    before, began = list(self._flushed_at), time.monotonic_ns()
                    self._records.flush(deadline=deadline)
                    self._flushed_at[self._number] = before[self._number] = began
                    self._not_before = before  # of hosts that were flushed before this one
                    self.seen["flushed"] += 1


def _afflict(server: Server, rng: random.Random) -> None:
    match rng.randrange(6):
        case 0:
            server.kill()
            time.sleep(rng.random())
            server.start()
        case 1:
            server.stop()
            time.sleep(rng.random())
            server.go_on()
        case 2:
            with server.client() as client:
                client.flushall()
        case 3:
            with server.client() as client:
                client.config_set("maxmemory-policy", rng.choice(["noeviction", "allkeys-lru", "allkeys-random"]))
                client.config_set("maxmemory", 6_000_000)
        case 4:
            with server.client() as client:
                for key in client.keys("mmcached:3:record:*"):
                    client.setrange(key, rng.randrange(5000), bytes([rng.randrange(256)]))
        case _:
            with server.client() as client:
                client.config_set("maxmemory", 0)
    time.sleep(rng.random())


@pytest.mark.soak
def test_a_storm_costs_records_and_never_a_byte(own_server: Server, make_records: MakeRecords) -> None:
    flushed_at = [0, 0]
    hosts = [_Host(number, make_records(own_server.url), flushed_at) for number in (0, 1)]
    threads = [thread for host in hosts for thread in host.threads]
    for thread in threads:
        thread.start()
    rng = random.Random(0)
    ends_at = time.monotonic() + STORM_S
    try:
        while time.monotonic() < ends_at and not any(host.failures for host in hosts):
            with suppress(RedisError):
                _afflict(own_server, rng)
    finally:
        for host in hosts:
            host.is_over = True
        for thread in threads:
            thread.join()
    assert [host.failures for host in hosts] == [[], []]
    for host in hosts:
        assert min(host.seen[what] for what in ("found", "kept", "flushed", "second_level_late")) > 0
