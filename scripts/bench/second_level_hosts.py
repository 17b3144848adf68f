"""Measures two services as two hosts with one Redis between them, beside a service that has no second level.

get    a record of 4.7 MiB that the other host has, until a client holds it; beside GET of redis-py and of a bare socket
ahead  a hit of such a record that was prefetched, beside a hit of a record that this host has put; eight, beside gets
drop   a record on both hosts, beside DEL of redis-py; and the longest time until the other host has dropped its copy
put    the same record, beside a put of a store without a second level; one alone, and eight in a row
hit    the slowest of a hundred first-level hits, while the server is well, stopped, full, and dead
call   the longest miss, against its deadline, while the server is stopped
once   what 32 clients on both hosts have computed, against what there was to compute
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import redis

from mmcached.cache.store_keys import store_key
from mmcached.cli.bench.redis import RawRedis, has_redis_server
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.second_level.namespaces import key_prefix
from mmcached.wire.config import ServiceConfig
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Sampler, Section, Unavailable, compare, row
from scripts.bench.peers import connect_redis

NUM_BYTES = 4_930_000  # 4.7 MiB
SIZE = "4.7 MiB"
RAW, REDIS_PY, WITHOUT = "bare socket", "redis-py", "without a second level"
PUT_HERE, NOT_AHEAD = "a record of this host", "without prefetch"
NUM_IN_A_ROW = 8
NUM_AHEAD = 8
PROMISED_MS = 3000
NUM_HITS = 2000
NUM_MISSES = 20
NUM_CLIENTS, NUM_PROCESSES, NUM_ITEMS = 32, 4, 100
ITEM_BYTES = 1 << 18
COMPUTE_S = 0.05
USUAL_ROUNDS, QUICK_ROUNDS = 21, 5
STATES = ("well", "stopped", "full", "dead")

BOUNDS = [
    Bound("reach", "get", SIZE, REDIS_PY, 1.25),
    Bound("try", "get", SIZE, RAW, 1.25),
    Bound("reach", "ahead", f"hit of {SIZE}", PUT_HERE, 1.1),
    Bound("reach", "ahead", f"{NUM_AHEAD} records of a turn", NOT_AHEAD, 0.1),
    Bound("try", "drop", "until it is confirmed", REDIS_PY, 20.0),
    Bound("reach", "drop", "longest until no copy is left", "what is promised", 1.0),
    Bound("reach", "put", "one alone", WITHOUT, 1.05),
    Bound("try", "put", f"{NUM_IN_A_ROW} in a row", WITHOUT, 1.05),
    *[Bound("reach", "hit, p99", state, WITHOUT, 1.1) for state in STATES],
    Bound("reach", "call", "longest miss", "its deadline", 1.1),
    Bound("reach", "once", f"{NUM_CLIENTS} clients", "items", 0.99, is_floor=True),
]


class Hosts:
    """The services, `a` and `b` with one server, `c` without, and a client of each."""

    def __init__(self, undo: contextlib.ExitStack) -> None:
        self.folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="mmc-l2-", dir="/tmp")))
        self.path = str(self.folder / "redis")
        self.start_server()
        undo.callback(self.kill_server)
        config = ServiceConfig(world_size=0, store_gb=0.5, log_level="warning", device="cpu")
        with_level = ServiceConfig(
            world_size=0, store_gb=0.5, log_level="warning", device="cpu", store_l2=f"unix://{self.path}"
        )
        self.clients: dict[str, Client] = {}
        for name, of_one in {"a": with_level, "b": with_level, "c": config}.items():
            service = undo.enter_context(ChildService(self.folder / name, of_one, self.folder / f"{name}.json"))
            self.clients[name] = undo.enter_context(Client(service.run_dir, timeout_s=30.0, fail_open=False))
        self._numbers = count()
        self.record = {"x": np.random.default_rng(0).integers(0, 256, NUM_BYTES, np.uint8)}
        for client in self.clients.values():
            client.put("item", self.record)
            client.get("item", tensors="numpy")
        while self.clients["a"].stats().second_level is None:
            time.sleep(0.01)

    def start_server(self) -> None:
        Path(self.path).unlink(missing_ok=True)
        command = ["redis-server", "--port", "0", "--unixsocket", self.path, "--save", ""]
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while True:
            with contextlib.suppress(redis.exceptions.RedisError), contextlib.closing(connect_redis(self.path)) as one:
                one.ping()
                return
            time.sleep(0.01)

    def kill_server(self) -> None:
        self._server.kill()
        self._server.wait()

    def new_key(self) -> str:
        return f"item {next(self._numbers)}"

    @contextlib.contextmanager
    def server(self, state: str) -> Iterator[None]:
        """Have the server in a state."""
        if state == "stopped":
            self._server.send_signal(19)
        elif state == "full":
            self._limit(1)
        elif state == "dead":
            self.kill_server()
        try:
            yield
        finally:
            if state == "stopped":
                self._server.send_signal(18)
            elif state == "full":
                self._limit(0)
            elif state == "dead":
                self.start_server()

    def wait_for(self, key: str) -> None:
        """Wait until the server has a record that the first host has put, and all is quiet."""
        with contextlib.closing(connect_redis(self.path)) as server:
            while not server.exists(f"{key_prefix('')}record:{store_key('', key)}"):
                time.sleep(0.005)
        time.sleep(0.02)

    def _limit(self, num_bytes: int) -> None:
        with contextlib.closing(connect_redis(self.path)) as server:
            server.config_set("maxmemory", num_bytes)


def gets(hosts: Hosts, num_rounds: int) -> list[Row]:
    a, b = hosts.clients["a"], hosts.clients["b"]
    key = hosts.new_key()
    a.put(key, hosts.record)
    hosts.wait_for(key)
    with contextlib.ExitStack() as undo:
        python = undo.enter_context(contextlib.closing(connect_redis(hosts.path)))
        raw = RawRedis(hosts.path, NUM_BYTES)
        undo.callback(raw.close)
        python.set("plain", hosts.record["x"].tobytes())

        def of_other_host() -> float:
            b.drop(key, local=True)
            return timed(lambda: held(b, key))

        samplers: dict[str, Sampler] = {
            "ours": of_other_host,
            REDIS_PY: lambda: timed(lambda: python.get("plain")),
            RAW: lambda: timed(lambda: raw.get("plain")),
        }
        figures = compare(samplers, num_rounds)
    return [row("get", SIZE, figures["ours"], "us", peer=peer, peer_value=figures[peer]) for peer in (REDIS_PY, RAW)]


def ahead(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    """Have the second host prefetch records of the first, and then hit them."""
    a, b = hosts.clients["a"], hosts.clients["b"]
    keys = [hosts.new_key() for _ in range(NUM_AHEAD)]
    for key in keys:
        a.put(key, hosts.record)
        hosts.wait_for(key)

    def hit(client: Client, key: str) -> float:
        return timed(lambda: client.get(key, view=True, tensors="numpy"))

    def turn(*, is_ahead: bool) -> float:
        drop_here(b, keys)
        if is_ahead:
            fetch_ahead(b, keys)
        return timed(lambda: [held(b, key) for key in keys])

    figures = compare({"ours": partial(turn, is_ahead=True), NOT_AHEAD: partial(turn, is_ahead=False)}, num_rounds)
    params = f"{NUM_AHEAD} records of a turn"
    yield row("ahead", params, figures["ours"], "us", peer=NOT_AHEAD, peer_value=figures[NOT_AHEAD])
    drop_here(b, keys)
    fetch_ahead(b, keys)
    figures = compare({"ours": partial(hit, b, keys[0]), PUT_HERE: partial(hit, b, "item")}, num_rounds)
    yield row("ahead", f"hit of {SIZE}", figures["ours"], "us", peer=PUT_HERE, peer_value=figures[PUT_HERE])


def drops(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    """Have the first host drop records of which the second has copies."""
    a, b = hosts.clients["a"], hosts.clients["b"]
    ended_ms: list[float] = []

    def here() -> float:
        key = hosts.new_key()
        a.put(key, hosts.record)
        hosts.wait_for(key)
        held(b, key)
        taken = timed(lambda: a.drop(key))
        began = time.perf_counter()
        while b.exists(key):
            time.sleep(0.001)
        ended_ms.append(1000 * (time.perf_counter() - began))
        return taken

    with contextlib.closing(connect_redis(hosts.path)) as python:

        def there() -> float:
            python.set("plain", hosts.record["x"].tobytes())
            return timed(lambda: python.delete("plain"))

        figures = compare({"ours": here, REDIS_PY: there}, num_rounds)
    yield row("drop", "until it is confirmed", figures["ours"], "us", peer=REDIS_PY, peer_value=figures[REDIS_PY])
    params = "longest until no copy is left"
    yield row("drop", params, max(ended_ms), "ms", peer="what is promised", peer_value=PROMISED_MS)


def fetch_ahead(client: Client, keys: list[str]) -> None:
    """Prefetch records, and wait until all are here; late records are asked for again."""
    while not all(client.contains_many(keys)):
        client.prefetch(keys)
        time.sleep(0.0005)


def drop_here(client: Client, keys: list[str]) -> None:
    client.delete(*keys, local=True)


def held(client: Client, key: str) -> object:
    """Return a record, however often it must be asked for: a busy machine may be late."""
    while (hit := client.get(key, view=True, tensors="numpy")) is None:
        pass
    return hit


def puts(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    for params, num_puts in {"one alone": 1, f"{NUM_IN_A_ROW} in a row": NUM_IN_A_ROW}.items():

        def put(name: str, num_puts: int = num_puts) -> float:
            keys = [hosts.new_key() for _ in range(num_puts)]
            taken = timed(lambda: [hosts.clients[name].put(key, hosts.record) for key in keys]) / num_puts
            for key in keys if name == "a" else ():
                hosts.wait_for(key)
            return taken

        figures = compare({"ours": partial(put, "a"), WITHOUT: partial(put, "c")}, num_rounds)
        yield row("put", params, figures["ours"], "us", peer=WITHOUT, peer_value=figures[WITHOUT])


def hits(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    """Hit again and again, while another thread misses and puts."""

    def p99(name: str) -> float:
        client = hosts.clients[name]
        taken = sorted(timed(lambda: client.get("item", view=True, tensors="numpy")) for _ in range(NUM_HITS))
        return taken[NUM_HITS * 99 // 100]

    for state in STATES:
        for name in ("a", "c"):
            hosts.clients[name].put("item", hosts.record)
        with hosts.server(state), traffic(hosts):
            figures = compare({"ours": partial(p99, "a"), WITHOUT: partial(p99, "c")}, num_rounds)
        yield row("hit, p99", state, figures["ours"], "us", peer=WITHOUT, peer_value=figures[WITHOUT])


@contextlib.contextmanager
def traffic(hosts: Hosts) -> Iterator[None]:
    """Have a process miss and put small records on the first and the third host, twenty times a second."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "traffic"]
    with subprocess.Popen([*command, str(hosts.folder / "a"), str(hosts.folder / "c")]) as process:
        try:
            yield
        finally:
            process.kill()


def longest_call(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    client = hosts.clients["a"]
    deadline_ms = ServiceConfig().limits.l2_timeout_ms
    with hosts.server("stopped"):
        taken = [timed(lambda: client.get(hosts.new_key())) for _ in range(NUM_MISSES * num_rounds)]
    yield row("call", "longest miss", max(taken) / 1000, "ms", peer="its deadline", peer_value=deadline_ms)


def once(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    """Have all clients ask for the same items in the same order, at once."""
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "ask"]
    num_computed = num_items = 0
    for _ in range(max(1, num_rounds // 5)):
        base = hosts.new_key()
        started = [
            subprocess.Popen(
                [*command, str(hosts.folder / "ab"[number % 2]), base], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            for number in range(NUM_PROCESSES)
        ]
        for process in started:
            _line(process)
        for process in started:
            _go(process)
        computed = [key for process in started for key in json.loads(_line(process))]
        for process in started:
            process.communicate()
        num_items += NUM_ITEMS
        num_computed += sum(computed.count(key) == 1 for key in set(computed))
    yield row("once", f"{NUM_CLIENTS} clients", num_computed, "items", peer="items", peer_value=num_items)


def _line(process: subprocess.Popen[bytes]) -> bytes:
    if process.stdout is None:
        raise RuntimeError("the process has no output")
    return process.stdout.readline()


def _go(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is None:
        raise RuntimeError("the process has no input")
    process.stdin.write(b"\n")
    process.stdin.flush()


def ask(run_dir: str, base: str) -> None:
    """Be some of the clients; print the keys that they have computed."""
    num_clients = NUM_CLIENTS // NUM_PROCESSES
    computed: list[str] = []
    start = threading.Barrier(num_clients)

    def compute(key: str) -> dict[str, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
        computed.append(key)
        time.sleep(COMPUTE_S)
        return {"x": np.full(ITEM_BYTES, 7, np.uint8)}

    def run(client: Client) -> None:
        start.wait()
        for index in range(NUM_ITEMS):
            key = f"{base}/{index}"
            client.get_or_compute(key, partial(compute, key), view=True, tensors="numpy")

    with contextlib.ExitStack() as undo:
        clients = [undo.enter_context(Client(run_dir, timeout_s=30.0)) for _ in range(num_clients)]
        for client in clients:
            client.get("item", tensors="numpy")
        print("ready", flush=True)
        sys.stdin.readline()
        with ThreadPoolExecutor(num_clients) as pool:
            list(pool.map(run, clients))
    print(json.dumps(computed), flush=True)


def miss_and_put(*run_dirs: str) -> None:
    """Be a client with misses and puts while other clients hit."""
    with contextlib.ExitStack() as undo:
        clients = [undo.enter_context(Client(run_dir, timeout_s=30.0)) for run_dir in run_dirs]
        for number in count():
            for client in clients:
                client.get(f"nobody's {number}")
                client.put(f"somebody's {number % 100}", {"x": np.zeros(ITEM_BYTES, np.uint8)})
            time.sleep(0.05)


def timed(run: Callable[[], object]) -> float:
    """Return the microseconds of a call; what it returns lives until the clock has been read."""
    started = time.perf_counter_ns()
    result = run()
    taken = time.perf_counter_ns() - started
    del result
    return taken / 1000


def _open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    if not has_redis_server():
        raise Unavailable("redis-server is not installed")
    hosts = Hosts(undo)
    return {
        "get": partial(gets, hosts),
        "ahead": partial(ahead, hosts),
        "drop": partial(drops, hosts),
        "put": partial(puts, hosts),
        "hit": partial(hits, hosts),
        "call": partial(longest_call, hosts),
        "once": partial(once, hosts),
    }


def main() -> None:
    harness.main(
        "two hosts with a second level between them",
        ["get", "ahead", "drop", "put", "hit", "call", "once"],
        _open_sections,
        rounds=(USUAL_ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )


if __name__ == "__main__":
    others: Mapping[str, Callable[..., None]] = {"ask": ask, "traffic": miss_and_put}
    if sys.argv[1:2] and sys.argv[1] in others:
        others[sys.argv[1]](*sys.argv[2:])
    else:
        main()
