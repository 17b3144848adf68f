"""Two services of one machine as two hosts, and one Redis: what one has computed the other finds, bit for bit.

Whatever becomes of the server, or of the process beside it: no wrong byte, no call that fails, and both services stay
ready. Skipped where there is no redis-server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.cli.admin.observe import fetch
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client, Video
from mmcached.second_level.process import SecondLevelProcess
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.paths import RunDir
from tests.clips.files import video_and_longer
from tests.integration.local_service import LocalService
from tests.integration.processes import DEADLINE_S, eventually, small_config
from tests.integration.test_encode_once import encoded
from tests.integration.workloads import assert_same, photo
from tests.second_level.servers import Server, find_program, short_folder

PATIENT = LimitsConfig(l2_timeout_ms=20_000, l2_claim_wait_ms=60_000, min_shared_encode_ms=0)
"""No test waits for these to pass."""
SHORT = LimitsConfig(l2_timeout_ms=300, l2_claim_wait_ms=20_000, flush_interval_s=0.0)


def record(key: str, num_bytes: int = 100_000) -> dict[str, Any]:
    """Return what is computed under a key; of another key it is another."""
    seed = int.from_bytes(key.encode(), "little") % (1 << 63)
    return {"key": key, "x": np.random.default_rng(seed).integers(0, 256, num_bytes, np.uint8)}


def is_right(found: Any, key: str) -> bool:
    return bool(found["key"] == key and np.array_equal(found["x"], record(key)["x"]))


@pytest.fixture(scope="module")
def program() -> str:
    found = find_program("redis-server")
    if found is None:
        pytest.skip("redis-server is not on this machine: a package of Debian")
    return found


@pytest.fixture(scope="module")
def server(program: str) -> Iterator[Server]:
    with short_folder() as folder, Server(program, folder, "--maxmemory-policy", "noeviction") as server:
        yield server


@pytest.fixture
def own_server(program: str) -> Iterator[Server]:
    """A server for one test, which may kill it."""
    with short_folder() as folder, Server(program, folder) as server:
        yield server


# ---- images


@contextmanager
def encoding_host(run_dir: Path, url: str) -> Iterator[tuple[Client, SecondLevelProcess]]:
    """Run a service with a worker, and its second level, in threads."""
    config = small_config(world_size=1, store_l2=url, limits=PATIENT)
    with LocalService(run_dir, config, saves_outputs=True) as service:
        records = SharedRecords(make_backend(url), max_bytes=1 << 28, ttl_s=60.0)
        with SecondLevelProcess(RunDir(run_dir), config, records) as level:
            level.start()
            eventually(lambda: service.frontend.store.second_level.is_open, bool, "the second level")
            with Client(run_dir) as client:
                yield client, level


def test_an_image_encoded_on_one_host_is_a_hit_on_the_other(run_dir: Path, server: Server) -> None:
    images = [photo(index) for index in range(4)]
    question = "what is " + "<image>" * len(images)
    with (
        encoding_host(run_dir / "a", server.url) as (ann, level),
        encoding_host(run_dir / "b", server.url) as (bob, _),
    ):
        answer, outputs = ann.generate(question, images, 4, hidden_states=True), ann.encode(images)
        eventually(lambda: level.stats().puts_kept, lambda count: count == encoded(ann.stats()), "all is saved")
        before = bob.stats()
        again, others = bob.generate(question, images, 4, hidden_states=True), bob.encode(images)
        after = bob.stats()
    assert encoded(after) == encoded(before), "the encoder has run on the second host"
    assert after.processor.items_processed == before.processor.items_processed
    assert after.store.fetches.hits - before.store.fetches.hits == len(images)
    assert_same([again], [answer])
    assert all(map(torch.equal, others, outputs))


def test_a_clip_encoded_on_one_host_is_not_opened_on_the_other(run_dir: Path, server: Server) -> None:
    clip, longer = video_and_longer(8, 4)
    with (
        encoding_host(run_dir / "a", server.url) as (ann, level),
        encoding_host(run_dir / "b", server.url) as (bob, _),
    ):
        answer = ann.generate("see <video>", max_tokens=4, videos=[Video(clip, fps=10)])
        eventually(lambda: level.stats().puts_kept, lambda count: count == encoded(ann.stats()) + 1, "all is saved")
        before = bob.stats()
        again = bob.generate("see <video>", max_tokens=4, videos=[Video(clip, fps=10)])
        after = bob.stats()
        assert (encoded(after), after.processor.items_processed) == (
            encoded(before),
            before.processor.items_processed,
        )
        assert after.store.fetches.hits - before.store.fetches.hits == 4 + 1
        assert again.tokens == answer.tokens
        more = bob.generate("see <video>", max_tokens=4, videos=[Video(longer, fps=10)])
        assert encoded(bob.stats()) == encoded(before) + 2, "what is new of a longer one"
        assert more.tokens == ann.generate("see <video>", max_tokens=4, videos=[Video(longer, fps=10)]).tokens


# ---- records, and a server that fails


class Pair:
    """A client of each of two hosts.

    Attributes:
        computed: keys, each as often as it was.
    """

    def __init__(self, clients: list[Client]) -> None:
        self.clients = clients
        self.computed: list[str] = []
        self._num_probes = 0

    def compute(self, key: str) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            self.computed.append(key)
            return record(key)

        return run

    def ask(self, key: str) -> None:
        """Have both hosts ask for a record; what they get is right, wherever it comes from."""
        for client in self.clients:
            assert is_right(client.get_or_compute(key, self.compute(key), tensors="numpy"), key)

    def are_together(self) -> bool:
        """Whether the second host finds what the first has just put."""
        self._num_probes += 1
        key = f"probe {self._num_probes}"
        ann, bob = self.clients
        return bool(ann.put(key, record(key, 10))) and any(bob.get(key, timeout_s=1.0) is not None for _ in range(10))


def _says_ready(page: bytes) -> bool:
    return page.startswith(b"ready")


class Hosts(Pair):
    """Two stores as `mmcached serve` runs them."""

    def __init__(self, folder: Path, url: str, stack: ExitStack, limits: LimitsConfig = SHORT, **settings: Any) -> None:
        config = small_config(
            world_size=0,
            store_l2=url,
            limits=limits,
            restart_backoff_s=0.05,
            max_restarts=1000,
            **settings,
        )
        self.services = [
            stack.enter_context(ChildService(folder / name, config, folder / f"{name}.json")) for name in "ab"
        ]
        super().__init__([stack.enter_context(Client(service.run_dir)) for service in self.services])

    def are_ready(self) -> None:
        """See that both services are ready."""
        for service in self.services:
            eventually(lambda: fetch(service.run_dir, "/readyz", DEADLINE_S), _says_ready, "ready")  # noqa: B023

    def check(self) -> None:
        """See that both services are ready, and come together again."""
        self.are_ready()
        eventually(self.are_together, bool, "one host finds what the other has put")


@pytest.fixture(scope="module")
def hosts(server: Server) -> Iterator[Hosts]:
    with short_folder() as folder, ExitStack() as stack:
        hosts = Hosts(folder, server.url, stack)
        hosts.ask("what they open for large records, they keep")
        for number, client in enumerate(hosts.clients):
            client.put(f"of {number}", record(f"of {number}"))
        eventually(hosts.are_together, bool, "both second levels")
        yield hosts


def test_of_all_who_ask_on_both_hosts_one_computes(hosts: Hosts) -> None:
    keys = [f"shared {index}" for index in range(20)]
    start = threading.Barrier(8)

    def ask(number: int) -> bool:
        client = hosts.clients[number % 2]
        start.wait(DEADLINE_S)
        return all(is_right(client.get_or_compute(key, hosts.compute(key), tensors="numpy"), key) for key in keys)

    hosts.computed.clear()
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(8)))
    assert sorted(hosts.computed) == sorted(keys)


def corrupt(server: Server) -> None:
    """Change a byte of each record, whatever lies there."""
    with server.client() as client:
        for name in list(client.scan_iter("*:record:*")):
            value = client.get(name)
            assert isinstance(value, bytes)
            middle = len(value) // 2
            client.set(name, value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :])


def cut(server: Server) -> None:
    """Leave half of each record."""
    with server.client() as client:
        for name in list(client.scan_iter("*:record:*")):
            value = client.get(name)
            assert isinstance(value, bytes)
            client.set(name, value[: len(value) // 2])


def flush_all(server: Server) -> None:
    with server.client() as client:
        client.flushall()


def fill(server: Server) -> None:
    with server.client() as client:
        client.config_set("maxmemory", 1)


def empty(server: Server) -> None:
    with server.client() as client:
        client.config_set("maxmemory", 0)


def nothing(server: Server) -> None:
    """Leave the server alone."""


FAULTS: dict[str, tuple[Callable[[Server], object], Callable[[Server], object]]] = {
    "flushed": (flush_all, nothing),
    "corrupted key by key": (corrupt, nothing),
    "cut key by key": (cut, nothing),
    "full": (fill, empty),
    "stopped": (Server.stop, Server.go_on),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_fails_costs_nothing_but_hits(hosts: Hosts, server: Server, fault: str) -> None:
    begin, end = FAULTS[fault]
    ann, bob = hosts.clients
    before = [f"{fault} before {index}" for index in range(3)]
    for key in before:
        ann.put(key, record(key))
    eventually(hosts.are_together, bool, "both hosts")
    begin(server)
    try:
        for key in [*before, *[f"{fault} {index}" for index in range(3)]]:
            hosts.ask(key)
        assert all(is_right(ann.get(key, tensors="numpy").record, key) for key in before), "of this host"  # type: ignore[union-attr]
        assert bob.get(f"{fault} of nobody") is None
    finally:
        end(server)
    hosts.check()
