"""The sidecar beside Redis: a record of 4.7 MiB in a client's hands, from 1, 4 and 16 client processes at once.

view       `Client.get(key, view=True)`: the tensor lies in shared memory, and is read in place
owned      `Client.get(key)`: the client's own, writable copy
redis-py   GET over a unix socket; the array refers to the bytes that came, no further copy is charged
raw Redis  GET by a socket and nothing else, into one buffer that is used again and again: what Redis can do at best
memcpy     one copy of that many bytes between two populated arrays, in this process

Every kind takes its turn in each of several rounds, in the same client processes, so that all meet the same machine.
Times are of single hits, over all clients and rounds; rates are hits per second of all clients together, the median of
the rounds. Without redis-server or redis-py the rows are left out, and a line says so.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmark import Row, report, row
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.paths import RunDir
from mmcached.wire.process.death import environment_for_children

NUM_BYTES = 4_928_307  # 4.7 MiB
CLIENTS = (1, 4, 16)
NUM_ROUNDS = 5
ROUND_S = 0.4
MIN_HITS = 3
KEY = "item"
RAW, REDIS_PY = "raw Redis", "redis-py"
TARGETS = {"view": 8.0, "owned": 3.0}
"""How many times Redis' rate each kind shall reach."""

Hit = Callable[[], Any]


# ---- a client process: reads `[kind, seconds]` per line, answers with the microseconds of each hit


def main_child(run_dir: Path) -> None:
    with Client(run_dir, fail_open=False) as client:
        kinds: dict[str, Hit] = {
            "view": lambda: _through(client, view=True),
            "owned": lambda: _through(client, view=False),
        }
        peers = _peers()
        if RAW in peers:
            kinds[RAW] = RawRedis(str(run_dir / "redis")).get
        if REDIS_PY in peers:
            redis = importlib.import_module("redis").Redis(unix_socket_path=str(run_dir / "redis"))
            kinds[REDIS_PY] = lambda: np.frombuffer(redis.get(KEY), np.uint8)[-1]
        for hit in kinds.values():
            hit()  # connects, maps, faults
        print("ready", flush=True)
        for line in sys.stdin:
            kind, seconds = json.loads(line)
            print(json.dumps(_times_us(kinds[kind], seconds)), flush=True)


def _through(client: Client, *, view: bool) -> Any:
    hit = client.get(KEY, view=view, tensors="numpy")
    if hit is None:
        raise SystemExit("the record is gone; the store is too small")
    with hit:
        return hit.record["x"][-1]


class RawRedis:
    """The fastest Redis client there can be in Python: it knows how long the answer will be."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._answer = memoryview(bytearray(len(f"${NUM_BYTES}\r\n") + NUM_BYTES + len("\r\n")))

    def get(self) -> Any:
        self._socket.sendall(_command(b"GET", KEY.encode()))
        received = 0
        while received < len(self._answer):
            received += self._socket.recv_into(self._answer[received:])
        return np.frombuffer(self._answer, np.uint8)[-3]

    def set(self, value: memoryview) -> None:
        self._socket.sendall(_command(b"SET", KEY.encode(), value))
        if self._socket.recv(16) != b"+OK\r\n":
            raise SystemExit("Redis did not take the record")

    def close(self) -> None:
        self._socket.close()


def _command(*words: Any) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def _times_us(hit: Hit, seconds: float) -> list[float]:
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < MIN_HITS or time.perf_counter() < until:
        started = time.perf_counter_ns()
        hit()
        times.append((time.perf_counter_ns() - started) / 1000)
    return times


# ---- the measuring process


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder, contextlib.ExitStack() as stack:
        run_dir = Path(folder)
        stack.enter_context(frontend(run_dir))
        record = np.random.default_rng(0).integers(0, 256, NUM_BYTES, np.uint8)
        with Client(run_dir, fail_open=False) as client:
            client.put(KEY, {"x": record})
        if _peers():
            stack.enter_context(redis_server(run_dir, record))
        for left_out in {RAW, REDIS_PY} - set(_peers()):
            print(f"{left_out} is left out: redis-server or the Python package redis is missing", file=sys.stderr)
        rows = []
        for num_clients in CLIENTS:
            rows += compare(run_dir, num_clients)
        return rows


def compare(run_dir: Path, num_clients: int) -> list[Row]:
    """Measure all kinds with so many client processes."""
    peers = _peers()
    kinds = ["view", "owned", *peers]
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    copies: list[float] = []
    with children(run_dir, num_clients) as processes:
        for _ in range(NUM_ROUNDS):
            copies.append(memcpy_us())
            for kind in kinds:
                for process in processes:
                    _ask(process, kind)
                found = [_answer(process) for process in processes]
                times[kind] += [each for hits in found for each in hits]
                rates[kind].append(sum(1e6 * len(hits) / sum(hits) for hits in found))
    params = f"{num_clients} client{'s' * (num_clients > 1)}"
    p50 = {kind: statistics.median(times[kind]) for kind in kinds}
    p99 = {kind: statistics.quantiles(times[kind], n=100)[98] for kind in kinds}
    rate = {kind: statistics.median(rates[kind]) for kind in kinds}
    rows = []
    for kind in ("view", "owned"):
        rows.append(row(f"hit, {kind}, p50", params, p50[kind], "us", peer="memcpy", peer_value=min(copies)))
        for peer in peers:
            rows.append(row(f"hit, {kind}, p50", params, p50[kind], "us", peer=peer, peer_value=p50[peer]))
            rows.append(row(f"hit, {kind}, p99", params, p99[kind], "us", peer=peer, peer_value=p99[peer]))
            name = f"hits, {kind} (>= {TARGETS[kind]:g})"
            rows.append(row(name, params, rate[kind], "1/s", peer=peer, peer_value=rate[peer]))
        if not peers:
            rows.append(row(f"hits, {kind}", params, rate[kind], "1/s", peer="memcpy", peer_value=1e6 / min(copies)))
    return rows


def memcpy_us() -> float:
    """Return the fastest of some copies."""
    source = np.ones(NUM_BYTES, np.uint8)
    target = np.zeros(NUM_BYTES, np.uint8)
    times = []
    for _ in range(20):
        started = time.perf_counter_ns()
        np.copyto(target, source)
        times.append((time.perf_counter_ns() - started) / 1000)
    return min(times)


@contextlib.contextmanager
def frontend(run_dir: Path) -> Iterator[None]:
    """A frontend without engines: the store needs none."""
    directory = RunDir(run_dir)
    directory.create()
    ServiceConfig(store_gb=0.25, mm_processor_cache_gb=1 / 64, log_level="warning").save(directory.config)
    command = [sys.executable, "-m", "mmcached", "frontend", "--run-dir", str(run_dir)]
    process = subprocess.Popen(command, env=environment_for_children(), stdout=sys.stderr)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@contextlib.contextmanager
def redis_server(run_dir: Path, record: np.ndarray[Any, Any]) -> Iterator[None]:
    """A server of its own, without persistence, that holds the record."""
    path = str(run_dir / "redis")
    command = [
        str(shutil.which("redis-server")),
        "--port",
        "0",
        "--unixsocket",
        path,
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    process = subprocess.Popen(command, cwd=run_dir, stdout=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 30
        while True:
            try:
                client = RawRedis(path)
                break
            except OSError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.02)
        client.set(record.data)
        client.close()
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def children(run_dir: Path, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, __file__, "--child", str(run_dir)]
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
    if shutil.which("redis-server") is None:
        return []
    return [RAW, *([REDIS_PY] if importlib.util.find_spec("redis") is not None else [])]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        main_child(Path(sys.argv[2]))
    else:
        report("the sidecar beside Redis: a hit of 4.7 MiB", measure)
