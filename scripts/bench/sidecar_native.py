"""Measures hits of the reader in C beside those of the client in Python, in turns, in the same service.

known digest   a look, lease and give back of one key, whose digest is kept
one key        the same with the key's digest, which the client in Python keeps for its last keys
many keys      4,096 keys of 1 KiB in turns, whose digests are kept
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np

from mmcached.client import Client
from scripts.bench.harness import Bound, Row, Unavailable, row, wall_us
from scripts.bench.sidecar_processes import KEY, Hit, forget_others, read_through

HERE = Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "shm" / "mmcached" / "include"
NUM_KEYS = 4096
NUM_HITS = 2000
KINDS = ("known digest", "one key", "many keys")
PYTHON = "the client in Python"
LIMIT = "2 µs"
BOUNDS = [Bound("reach", "hit, in C", kind, LIMIT, 1.0) for kind in KINDS]


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


def _compiled(folder: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        raise Unavailable("no C compiler: install cc")
    program = folder / "native_hits"
    flags = ["-std=gnu11", "-O2", f"-I{INCLUDE}", "-lpthread"]
    subprocess.run([compiler, str(HERE / "native_hits.c"), *flags, "-o", str(program)], check=True, timeout=300)
    return program
