"""Measures hits of the reader in C, and of the client with `mmcached-native`, beside those of the client in Python.

known digest   a look, lease and give back of one key, whose digest is kept
one key        the same with the key's digest, which the client in Python keeps for its last keys
many keys      4,096 keys of 1 KiB in turns, whose digests are kept
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import numpy as np

from mmcached.client import Client
from mmcached.client.store.native_session import SWITCH
from scripts.bench.harness import Bound, Row, Unavailable, row, wall_us
from scripts.bench.sidecar_processes import KEY, Hit, forget_others, read_through

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "shm" / "mmcached" / "include"
NUM_KEYS = 4096
NUM_HITS = 2000
NUM_MANY = 64
NUM_COLD = 100
OTHER_BYTES = 16 << 20
"""So much other memory is written and read between two cold hits."""
KINDS = ("known digest", "one key", "many keys")
PYTHON = "the client in Python"
LIMIT = "2 µs"
MANY, COLD = f"{NUM_MANY} × 256 KiB", "4 KiB, cold caches"
WITH_MODULE = ("4 KiB", "256 KiB", "4.7 MiB", COLD, MANY)
MODULE_LIMIT, ONE_HIT = "5 µs", "one hit"
BOUNDS = [
    *(Bound("reach", "hit, in C", kind, LIMIT, 1.0) for kind in KINDS),
    *(Bound("reach", "hit, mmcached-native", kind, MODULE_LIMIT, 1.0) for kind in WITH_MODULE[:3]),
    Bound("try", "hit, mmcached-native", COLD, MODULE_LIMIT, 1.0),  # on a busy machine it is several times as much
    Bound("reach", "many views, mmcached-native", MANY, ONE_HIT, 15.0),
]


def compare_native(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure hits in C; raise Unavailable without a compiler."""
    times: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="mmc-") as folder, Client(run_dir, fail_open=False) as client:
        program = _compiled(Path(folder))
        forget_others(client)
        keys = [f"{KEY} {number}" for number in range(NUM_KEYS)]
        for key in keys:
            client.put(key, {"x": np.zeros(1 << 10, np.uint8)})
        in_turns = cycle(keys)
        one = partial(read_through, client, view=True)
        hits: dict[str, Hit] = {"known digest": one, "one key": one, "many keys": lambda: one(key=next(in_turns))}
        command = [str(program), str(run_dir), KEY, str(NUM_KEYS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as native:
            assert native.stdin is not None
            assert native.stdout is not None
            for _ in range(num_rounds):
                native.stdin.write("\n")
                found = map(float, native.stdout.readline().split())
                for (kind, hit), native_ns in zip(hits.items(), found, strict=True):
                    times[kind][0].append(native_ns)
                    times[kind][1].append(1000 * statistics.median(wall_us(hit) for _ in range(NUM_HITS)))
            native.stdin.close()
    rows = []
    for kind, (in_c, in_python) in times.items():
        native_ns = statistics.median(in_c)
        rows.append(row("hit, in C", kind, native_ns, "ns", peer=PYTHON, peer_value=statistics.median(in_python)))
        rows.append(row("hit, in C", kind, native_ns, "ns", peer=LIMIT, peer_value=2000.0))
    return rows


def compare_module(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure hits of a client with `mmcached-native`; raise Unavailable if it is not installed.

    Both clients are in this process, and take turns.
    """
    if find_spec("mmcached_native") is None:
        raise Unavailable("mmcached-native is not installed: pip install ./shm")
    times: dict[str, dict[str, list[float]]] = {kind: {"0": [], "1": []} for kind in WITH_MODULE}
    other, to = np.ones(OTHER_BYTES // 2, np.uint8), np.zeros(OTHER_BYTES // 2, np.uint8)
    keys = [f"of many {index}" for index in range(NUM_MANY)]
    with ExitStack() as stack:
        clients = {switch: stack.enter_context(_client(run_dir, switch)) for switch in "01"}
        forget_others(clients["0"])
        for key, num_bytes in {"small": 4096, **dict.fromkeys(keys, 256 << 10)}.items():
            clients["0"].put(key, {"x": np.ones(num_bytes, np.uint8)})
        for _ in range(num_rounds):
            for switch, client in clients.items():
                small = partial(read_through, client, view=True, key="small")
                large = partial(read_through, client, view=True)
                times["4 KiB"][switch].append(_median_us(small))
                times["256 KiB"][switch].append(_median_us(partial(read_through, client, view=True, key=keys[0])))
                times["4.7 MiB"][switch].append(_median_us(large))
                times[MANY][switch].append(_median_us(partial(_read_many, client, keys), NUM_HITS // NUM_MANY))
                times[COLD][switch].append(_median_us(small, NUM_COLD, before=partial(np.copyto, to, other)))
    rows = []
    for kind, found in times.items():
        name = "many views, mmcached-native" if kind == MANY else "hit, mmcached-native"
        ours, in_python = (statistics.median(found[switch]) for switch in "10")
        rows.append(row(name, kind, ours, "us", peer=PYTHON, peer_value=in_python))
        peer, limit = (MODULE_LIMIT, 5.0) if kind != MANY else (ONE_HIT, statistics.median(times["256 KiB"]["1"]))
        rows.append(row(name, kind, ours, "us", peer=peer, peer_value=limit))
    return rows


def _client(run_dir: Path, switch: str) -> Client:
    """Return a client in contact, which reads in C if `switch` is 1."""
    former = os.environ.get(SWITCH)
    os.environ[SWITCH] = switch
    try:
        client = Client(run_dir, fail_open=False)
        client.exists("a key")  # attaches
    finally:
        del os.environ[SWITCH]
        if former is not None:
            os.environ[SWITCH] = former
    return client


def _read_many(client: Client, keys: list[str]) -> None:
    for hit in client.get_many(keys, view=True, tensors="numpy"):
        if hit is None:
            raise SystemExit("a record is gone; the store is too small")
        hit.record["x"][-1]


def _median_us(what: Hit, number: int = NUM_HITS, before: Callable[[], None] = lambda: None) -> float:
    times = []
    for _ in range(number):
        before()
        times.append(wall_us(what))
    return statistics.median(times)


def _compiled(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("no C compiler: install cc")
    program = folder / "native_hits"
    flags = ["-std=gnu11", "-O2", f"-I{INCLUDE}", "-lpthread"]
    subprocess.run([compiler, str(HERE / "native_hits.c"), *flags, "-o", str(program)], check=True, timeout=300)
    return program
