"""Measures the sidecar beside Redis: a record of 4.7 MiB in the hands of 1, 4 and 16 client processes.

view       `Client.get(key, view=True)`: the tensor lies in shared memory, and is read in place
owned      `Client.get(key)`: the client's own, writable copy
redis-py   GET over a unix socket; the array refers to the bytes that came, no further copy is charged
raw Redis  GET by a socket and nothing else, into one buffer that is used again and again: what Redis can do at best
memcpy     one copy of that many bytes between two populated arrays, in this process

put        `Client.put` of a new key, until the answer: from then on every client can read it
socket     the same, by a service that takes no rings of clients

look       `Client.contains_many([key])`, or whether a file is there
file       a file of the same bytes in /dev/shm: looked for, mapped, read in place; it has no limit, no eviction, and
           nobody knows whether it is whole
safetensors  the same with the format and library of vLLM's ECExampleConnector
stores     the same record, got from another process, beside the peers of `stores`
miss       `Client.get` of a key that is not there
many       `Client.get_many` of 64 records of 256 KiB, as views, beside one hit
crowd      hits, as views, of one client beside 8 that put and miss without a pause
empty loop the same crowd, in turns with the hits: a loop that takes as long as a hit and shares nothing with anybody,
           so what is slow in it is the machine's: more processes than cores
restart    the frontend is killed: see `sidecar_restart`

Every kind takes its turn in each of several rounds, in the same client processes, so that all meet the same machine.
Times are of single hits, over all clients and rounds; rates are hits per second of all clients together, the median of
the rounds. Without redis-server or redis-py the rows are left out, and a line says so.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from mmcached.cli.serve.roles import PAST_CACHES
from mmcached.client import Client
from mmcached.shm.store.codec import Library
from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.paths import RunDir
from mmcached.wire.process.death import environment_for_children
from scripts.bench import harness, peers, sidecar_restart, stores
from scripts.bench.harness import Bound, Row, Section, row, tell_once, wall_us
from scripts.bench.peers import RawRedis

NUM_BYTES = 4_928_307  # 4.7 MiB
CLIENTS = {f"{number} client{'s' * (number > 1)}": number for number in (1, 4, 16)}
NUM_ROUNDS = 5
QUICK_ROUNDS = 2
ROUND_S = 0.4
MIN_HITS = 3
KEY = "item"
PUTS, SOCKET, LOOKS, STORES, CROWD, RESTART = "puts", "socket", "looks", "stores", "crowd", "restart"
FILE, SAFETENSORS = "file in /dev/shm", "safetensors in /dev/shm"
LOOK_SIZES = {"0.4 MiB": 400 << 10, "4.5 MiB": 4608 << 10, "16 MiB": 16 << 20}
NUM_LOOKS = 2000
NUM_GETS = 200
NUM_MANY = 64
CROWD_SIZE = 8
PUT_SIZES = {"4 KiB": 4096, "256 KiB": 256 << 10, "4.7 MiB": NUM_BYTES, "16 MiB": 16 << 20}
PUTS_PER_ROUND = 30
RAW, REDIS_PY = "raw Redis", "redis-py"
BOUNDS = [
    Bound("reach", f"hits, {kind}", params, peer, rate, is_floor=True)
    for kind, rate in (("view", 60.0), ("owned", 3.0))
    for params in CLIENTS
    for peer in (RAW, REDIS_PY)
] + [
    Bound("reach", "hit, view, p50", "1 client", RAW, 0.015),
    Bound("reach", "hit, owned, p50", "1 client", "memcpy", 1.4),
    Bound("reach", "put, p50", "4.7 MiB", "memcpy", 3.0),
    Bound("try", "get, owned", "0.4 MiB", stores.MOONCAKE, 0.1),
    *(Bound("reach", "get, owned", size, stores.MOONCAKE, 0.1) for size in ("4.5 MiB", "16 MiB")),
    Bound("reach", "many views", f"{NUM_MANY} × 256 KiB", "one hit", 15.0),
    Bound("reach", "hit, p99", f"beside {CROWD_SIZE} that put and miss", "its p50", 5.0),
    Bound("try", "hit, p99", f"beside {CROWD_SIZE} that put and miss", "empty loop, p99", 1.5),
    *(Bound("try", "look", size, FILE, 1.0) for size in LOOK_SIZES),
    *(Bound("reach", "look and load", size, SAFETENSORS, 0.5) for size in LOOK_SIZES),
    *sidecar_restart.BOUNDS,
]
"""How many times Redis' rate each kind of hit shall reach, how many copies' time a put may take, …"""

Hit = Callable[[], Any]


# ---- a client process: reads `[kind, seconds]` per line, answers with the microseconds of each hit


def main_child(run_dir: Path) -> None:
    with Client(run_dir, fail_open=False) as client:
        kinds: dict[str, Hit] = {
            "view": lambda: _through(client, view=True),
            "owned": lambda: _through(client, view=False),
            CROWD: partial(_put_and_miss, client, count(), np.zeros(64 << 10, np.uint8)),
        }
        if RAW in _peers():
            kinds[RAW] = partial(RawRedis(str(run_dir / "redis"), NUM_BYTES).get, KEY)
        if REDIS_PY in _peers():
            redis = peers.connect_redis(str(run_dir / "redis"))
            kinds[REDIS_PY] = lambda: np.frombuffer(redis.get(KEY), np.uint8)[-1]
        for hit in kinds.values():
            hit()  # connects, maps, faults
        print("ready", flush=True)
        for line in sys.stdin:
            kind, seconds = json.loads(line)
            print(json.dumps(_times_us(kinds[kind], seconds)), flush=True)


def _through(client: Client, *, view: bool, key: str = KEY) -> Any:
    hit = client.get(key, view=view, tensors="numpy")
    if hit is None:
        raise SystemExit("the record is gone; the store is too small")
    with hit:
        return hit.record["x"][-1]


def _put_and_miss(client: Client, numbers: Iterator[int], payload: Any) -> None:
    key = f"{id(client)} {next(numbers)}"
    client.put(key, {"x": payload})
    client.get(f"not {key}")


def _times_us(hit: Hit, seconds: float) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < MIN_HITS or time.perf_counter() < until:
        times.append(wall_us(hit))
    return times


# ---- the measuring process


@contextlib.contextmanager
def service() -> Iterator[Path]:
    """Run a frontend, and Redis if it is there, both with the record; yield the run directory."""
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder, ExitStack() as stack:
        run_dir = Path(folder)
        stack.enter_context(frontend(run_dir))
        record = np.random.default_rng(0).integers(0, 256, NUM_BYTES, np.uint8)
        with Client(run_dir, fail_open=False) as client:
            client.put(KEY, {"x": record})
        if _peers():
            stack.enter_context(peers.redis_server(str(run_dir / "redis")))
            with contextlib.closing(RawRedis(str(run_dir / "redis"), NUM_BYTES)) as redis:
                redis.set(KEY, record.data)
        for left_out in sorted({RAW, REDIS_PY} - set(_peers())):
            tell_once(f"rows are left out: {left_out}: redis-server or the Python package redis is missing")
        yield run_dir


def compare(run_dir: Path, params: str, num_rounds: int) -> list[Row]:
    """Measure all kinds with so many client processes."""
    redis = _peers()
    kinds = ["view", "owned", *redis]
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    copies: list[float] = []
    with children(run_dir, CLIENTS[params]) as processes:
        for _ in range(num_rounds):
            copies.append(memcpy_us())
            for kind in kinds:
                for process in processes:
                    _ask(process, kind)
                found = [_answer(process) for process in processes]
                times[kind] += [each for hits in found for each in hits]
                rates[kind].append(sum(1e6 * len(hits) / sum(hits) for hits in found))
    p50 = {kind: statistics.median(times[kind]) for kind in kinds}
    p99 = {kind: statistics.quantiles(times[kind], n=100)[98] for kind in kinds}
    rate = {kind: statistics.median(rates[kind]) for kind in kinds}
    rows = []
    for kind in ("view", "owned"):
        rows.append(row(f"hit, {kind}, p50", params, p50[kind], "us", peer="memcpy", peer_value=min(copies)))
        for peer in redis:
            rows.append(row(f"hit, {kind}, p50", params, p50[kind], "us", peer=peer, peer_value=p50[peer]))
            rows.append(row(f"hit, {kind}, p99", params, p99[kind], "us", peer=peer, peer_value=p99[peer]))
            rows.append(row(f"hits, {kind}", params, rate[kind], "1/s", peer=peer, peer_value=rate[peer]))
        if not redis:
            rows.append(row(f"hits, {kind}", params, rate[kind], "1/s", peer="memcpy", peer_value=1e6 / min(copies)))
    return rows


def compare_puts(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure puts of one client; of each size some to each service in turns, none of them among the first."""
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder, ExitStack() as stack:
        stack.enter_context(frontend(Path(folder), max_egress_rings=0))
        clients = {"ring": run_dir, SOCKET: Path(folder)}
        writers = {kind: stack.enter_context(Client(each, fail_open=False)) for kind, each in clients.items()}
        reader = stack.enter_context(Client(run_dir, fail_open=False))
        numbers = count()
        for size, num_bytes in PUT_SIZES.items():
            record = {"x": np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)}
            for _ in range(num_rounds):
                for kind, writer in writers.items():
                    keys = [f"{size} {next(numbers)}" for _ in range(PUTS_PER_ROUND)]
                    found = [wall_us(partial(writer.put, key, record)) for key in keys]
                    times.setdefault((size, kind), []).extend(found[PUTS_PER_ROUND // 3 :])
                    if kind == "ring" and reader.get(keys[-1], view=True) is None:
                        raise SystemExit("another client cannot read what was put")
    rows = []
    for size, num_bytes in PUT_SIZES.items():
        ring, through_socket = (statistics.median(times[size, kind]) for kind in ("ring", SOCKET))
        rows.append(row("put, p50", size, ring, "us", peer="memcpy", peer_value=memcpy_us(num_bytes)))
        rows.append(row("put, p50", size, ring, "us", peer=SOCKET, peer_value=through_socket))
    return rows


def compare_looks(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure what a client finds beside a file in /dev/shm, a miss, and many records at a time."""
    rows = []
    with ExitStack() as stack:
        client = stack.enter_context(Client(run_dir, fail_open=False))
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mmc-"))
        _empty(client)
        for size, num_bytes in LOOK_SIZES.items():
            record = np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)
            path = Path(folder) / size
            path.write_bytes(record.data)
            client.put(size, {"x": record})
            sides: dict[str, tuple[Hit, Hit]] = {
                "look": (partial(client.contains_many, [size]), path.exists),
                "look and load": (partial(_view, client, size), partial(_mapped, path)),
            }
            for name, (ours, file) in sides.items():
                ours_us, file_us = _medians(num_rounds, NUM_LOOKS, ours, file)
                rows.append(row(name, size, ours_us, "us", peer=FILE, peer_value=file_us))
            path.unlink()
            if (load := peers.safetensors_loader(path, record)) is not None:
                ours_us, peer_us = _medians(num_rounds, NUM_LOOKS, partial(_view, client, size, "torch"), load)
                rows.append(row("look and load", size, ours_us, "us", peer=SAFETENSORS, peer_value=peer_us))
                path.unlink()
        keys = [f"of many {index}" for index in range(NUM_MANY)]
        for key in keys:
            client.put(key, {"x": np.zeros(256 << 10, np.uint8)})
        one, miss, look, many = _medians(
            num_rounds,
            NUM_LOOKS,
            partial(_view, client, keys[0]),
            partial(client.get, "nothing"),
            partial(client.contains_many, ["nothing"]),
            lambda: [hit and hit.record["x"][-1] for hit in client.get_many(keys, view=True, tensors="numpy")],
        )
        rows.append(row("many views", f"{NUM_MANY} × 256 KiB", many, "us", peer="one hit", peer_value=one))
        rows.append(row("miss", "1 key", miss, "us", peer="look", peer_value=look))
    return rows


def compare_stores(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure gets of what another process has put."""
    rows = []
    with Client(run_dir, fail_open=False) as client, stores.gets(list(LOOK_SIZES.values())) as gets:
        _empty(client)
        for size, num_bytes in LOOK_SIZES.items():
            client.put(size, {"x": np.ones(num_bytes, np.uint8)})
            ours = [partial(_through, client, view=view, key=size) for view in (True, False)]
            found = _medians(2 * num_rounds, NUM_GETS, *ours, *(by_size[num_bytes] for by_size in gets.values()))
            for name, ours_us in zip(("get, view", "get, owned"), found, strict=False):
                for peer, peer_us in zip(gets, found[len(ours) :], strict=True):
                    if name == "get, view" or peer == stores.MOONCAKE:  # Ray's are views too
                        rows.append(row(name, size, ours_us, "us", peer=peer, peer_value=peer_us))
    return rows


def compare_in_crowd(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure the hits of one client while others put and miss, in turns with an empty loop."""
    hits: list[float] = []
    loops: list[float] = []
    with ExitStack() as stack:
        client = stack.enter_context(Client(run_dir, fail_open=False))
        _empty(client)
        hit = partial(_through, client, view=True)
        loop = partial(_count_to, _turns_as_long_as(hit))
        processes = stack.enter_context(children(run_dir, CROWD_SIZE))
        for _ in range(num_rounds):
            for process in processes:
                _ask(process, CROWD)
            until = time.perf_counter() + ROUND_S
            while len(loops) < MIN_HITS or time.perf_counter() < until:
                hits.append(wall_us(hit))
                loops.append(wall_us(loop))
            for process in processes:
                _answer(process)
    params = f"beside {CROWD_SIZE} that put and miss"
    hit_p99, loop_p99 = (statistics.quantiles(times, n=100)[98] for times in (hits, loops))
    return [
        row("hit, p99", params, hit_p99, "us", peer="its p50", peer_value=statistics.median(hits)),
        row("hit, p99", params, hit_p99, "us", peer="empty loop, p99", peer_value=loop_p99),
        row("empty loop, p99", params, loop_p99, "us", peer="its p50", peer_value=statistics.median(loops)),
    ]


def _turns_as_long_as(hit: Hit) -> int:
    """Return how many turns of an empty loop take as long as a hit."""
    hit_us = min(wall_us(hit) for _ in range(NUM_LOOKS))
    return round(NUM_LOOKS * hit_us / min(wall_us(partial(_count_to, NUM_LOOKS)) for _ in range(100)))


def _count_to(num_turns: int) -> None:
    for _ in range(num_turns):
        pass


def _empty(client: Client) -> None:
    """Forget what other sections have put, which would drive newcomers out, but for the record that all hit."""
    client.flush()
    client.put(KEY, {"x": np.zeros(NUM_BYTES, np.uint8)})


def _view(client: Client, key: str, tensors: Library = "numpy") -> Any:
    hit = client.get(key, view=True, tensors=tensors)
    if hit is None:
        raise SystemExit(f"the record of {key} is gone; the store is too small")
    return hit.record["x"][-1]


def _mapped(path: Path) -> Any:
    if not path.exists():
        return None
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)[-1]


def _medians(num_rounds: int, num_times: int, *whats: Hit) -> list[float]:
    """Return the median time of each, measured in turns, in microseconds."""
    times: list[list[float]] = [[] for _ in whats]
    for _ in range(num_rounds):
        for what, found in zip(whats, times, strict=True):
            found += [wall_us(what) for _ in range(num_times // num_rounds)]
    return [statistics.median(found) for found in times]


def memcpy_us(num_bytes: int = NUM_BYTES) -> float:
    """Return the fastest of some copies."""
    source = np.ones(num_bytes, np.uint8)
    target = np.zeros(num_bytes, np.uint8)
    return min(wall_us(partial(np.copyto, target, source)) for _ in range(20))


@contextlib.contextmanager
def frontend(run_dir: Path, **limits: int) -> Iterator[None]:
    """A frontend without engines: the store needs none."""
    directory = RunDir(run_dir)
    directory.create()
    config = ServiceConfig(
        store_gb=0.25, mm_processor_cache_gb=1 / 64, log_level="warning", limits=LimitsConfig(**limits)
    )
    config.save(directory.config)
    command = [sys.executable, "-m", "mmcached", "frontend", "--run-dir", str(run_dir)]
    process = subprocess.Popen(command, env=PAST_CACHES | environment_for_children(), stdout=sys.stderr)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def children(run_dir: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "scripts.bench.sidecar", "--child", str(run_dir)]
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(count):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
                env=environment_for_children(),
            )
            stack.enter_context(process)  # its end: closes the input, and waits
            started.append(process)
        for process in started:
            if process.stdout is None or process.stdout.readline() != "ready\n":
                raise SystemExit("a client process did not start")
        yield started


def _ask(process: subprocess.Popen[str], kind: str) -> None:
    if process.stdin is not None:
        process.stdin.write(json.dumps([kind, ROUND_S]) + "\n")


def _answer(process: subprocess.Popen[str]) -> list[float]:
    if process.stdout is None:
        raise SystemExit("a client process has no output")
    times: list[float] = json.loads(process.stdout.readline())
    return times


def _peers() -> list[str]:
    """Return the kinds of Redis that can be measured here."""
    if not peers.has_redis_server():
        return []
    return [RAW, *([REDIS_PY] if peers.has_redis_client() else [])]


def open_sections(undo: ExitStack) -> Mapping[str, Section]:
    run_dir = undo.enter_context(service())
    hits = {params: partial(compare, run_dir, params) for params in CLIENTS}
    return hits | {
        PUTS: partial(compare_puts, run_dir),
        LOOKS: partial(compare_looks, run_dir),
        STORES: partial(compare_stores, run_dir),
        CROWD: partial(compare_in_crowd, run_dir),
        RESTART: sidecar_restart.compare_restarts,
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        main_child(Path(sys.argv[2]))
    else:
        harness.main(
            "the sidecar beside Redis: a hit of 4.7 MiB, and puts",
            [*CLIENTS, PUTS, LOOKS, STORES, CROWD, RESTART],
            open_sections,
            rounds=(NUM_ROUNDS, QUICK_ROUNDS),
            bounds=BOUNDS,
        )
