"""Measures two services as two hosts with one Redis between them, beside a service that has no second level.

get    a record of 4.7 MiB that the other host has, until a client holds it; beside GET of redis-py and of a bare socket
put    the same record, beside a put of a store without a second level; one alone, and eight in a row
hit    the slowest of a hundred first-level hits, while the server is well, stopped, full, and dead
call   the longest miss, against its deadline, while the server is stopped
once   what 32 clients on both hosts have computed, against what there was to compute

`second_level_fleet` and `second_level_pins` have the sections `ahead`, `warm`, `drop`, `quota`, `namespace` and `pin`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

import numpy as np

from mmcached.cli.bench.redis import RawRedis, has_redis_server
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from scripts.bench import harness, second_level_fleet, second_level_pins
from scripts.bench.harness import Bound, Row, Sampler, Section, Unavailable, compare, row
from scripts.bench.peers import connect_redis
from scripts.bench.second_level_services import NUM_BYTES, REDIS_PY, SIZE, Hosts, held, timed

RAW, WITHOUT = "bare socket", "without a second level"
NUM_IN_A_ROW = 8
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
    *second_level_fleet.BOUNDS,
    *second_level_pins.BOUNDS,
    Bound("reach", "put", "one alone", WITHOUT, 1.05),
    Bound("try", "put", f"{NUM_IN_A_ROW} in a row", WITHOUT, 1.05),
    *[Bound("reach", "hit, p99", state, WITHOUT, 1.1) for state in STATES],
    Bound("reach", "call", "longest miss", "its deadline", 1.1),
    Bound("reach", "once", f"{NUM_CLIENTS} clients", "items", 0.99, is_floor=True),
]


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


def _open_sections(undo: contextlib.ExitStack) -> Mapping[str, Section]:
    if not has_redis_server():
        raise Unavailable("redis-server is not installed")
    hosts = Hosts(undo)
    return {
        "get": partial(gets, hosts),
        "ahead": partial(second_level_fleet.ahead, hosts),
        "warm": partial(second_level_fleet.warm, hosts),
        "drop": partial(second_level_fleet.drops, hosts),
        "pin": partial(second_level_pins.pins, hosts),
        "quota": partial(second_level_fleet.quotas, hosts),
        "namespace": partial(second_level_fleet.namespaces, hosts),
        "put": partial(puts, hosts),
        "hit": partial(hits, hosts),
        "call": partial(longest_call, hosts),
        "once": partial(once, hosts),
    }


def main() -> None:
    harness.main(
        "two hosts with a second level between them",
        ["get", "ahead", "warm", "drop", "pin", "quota", "namespace", "put", "hit", "call", "once"],
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
