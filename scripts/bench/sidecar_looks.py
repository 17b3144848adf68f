"""Measures what one client finds, in turns with what is beside it.

look         `Client.contains_many([key])`, or whether a file is there
file         a file of the same bytes in /dev/shm: looked for, mapped, read in place; it has no limit, no eviction, and
             nobody knows whether it is whole
safetensors  the same with the format and library of vLLM's ECExampleConnector
cold         a hit after other work has filled the processor's caches, as between two steps of a server, beside the same
             hit in a loop
stores       the same record, got from another process, beside the peers of `stores`
miss         `Client.get` of a key that is not there
many         `Client.get_many` of 64 records of 256 KiB, as views, beside one hit
"""

from __future__ import annotations

import mmap
import statistics
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mmcached.client import Client
from mmcached.shm.store.codec import Library
from scripts.bench import peers, stores
from scripts.bench.harness import Bound, Row, row, wall_us
from scripts.bench.sidecar_processes import Hit, forget_others, read_through

FILE, SAFETENSORS = "file in /dev/shm", "safetensors in /dev/shm"
LOOK_SIZES = {"0.4 MiB": 400 << 10, "4.5 MiB": 4608 << 10, "16 MiB": 16 << 20}
NUM_LOOKS = 2000
NUM_GETS = 200
NUM_MANY = 64
NUM_COLD = 300
OTHER_BYTES = 16 << 20
"""So much other memory is written and read between two cold hits."""
COLD_SIZES = {"4 KiB": 4096, "4.7 MiB": 4_928_307}
BOUNDS = [
    Bound("try", "get, owned", "0.4 MiB", stores.MOONCAKE, 0.1),
    *(Bound("reach", "get, owned", size, stores.MOONCAKE, 0.1) for size in ("4.5 MiB", "16 MiB")),
    Bound("reach", "many views", f"{NUM_MANY} × 256 KiB", "one hit", 15.0),
    *(Bound("reach", "hit, cold caches", size, "in a loop", 3.0) for size in COLD_SIZES),
    *(Bound("try", "look", size, FILE, 1.0) for size in LOOK_SIZES),
    *(Bound("reach", "look and load", size, SAFETENSORS, 0.5) for size in LOOK_SIZES),
]


def compare_looks(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure what a client finds beside a file in /dev/shm, a miss, and many records at a time."""
    rows = []
    with ExitStack() as stack:
        client = stack.enter_context(Client(run_dir, fail_open=False))
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mmc-"))
        forget_others(client)
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


def compare_cold(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure hits as views between which other memory is used."""
    rows = []
    other, to = np.ones(OTHER_BYTES // 2, np.uint8), np.zeros(OTHER_BYTES // 2, np.uint8)
    with Client(run_dir, fail_open=False) as client:
        forget_others(client)
        for size, num_bytes in COLD_SIZES.items():
            client.put(size, {"x": np.ones(num_bytes, np.uint8)})
            hit = partial(_view, client, size)
            cold: list[float] = []
            loop: list[float] = []
            for _ in range(num_rounds):
                loop += [wall_us(hit) for _ in range(NUM_COLD // num_rounds)][1:]
                for _ in range(NUM_COLD // num_rounds):
                    np.copyto(to, other)
                    cold.append(wall_us(hit))
            cold_us, loop_us = statistics.median(cold), statistics.median(loop)
            rows.append(row("hit, cold caches", size, cold_us, "us", peer="in a loop", peer_value=loop_us))
    return rows


def compare_stores(run_dir: Path, num_rounds: int) -> list[Row]:
    """Measure gets of what another process has put."""
    rows = []
    with Client(run_dir, fail_open=False) as client, stores.gets(list(LOOK_SIZES.values())) as gets:
        forget_others(client)
        for size, num_bytes in LOOK_SIZES.items():
            client.put(size, {"x": np.ones(num_bytes, np.uint8)})
            ours = [partial(read_through, client, view=view, key=size) for view in (True, False)]
            found = _medians(2 * num_rounds, NUM_GETS, *ours, *(by_size[num_bytes] for by_size in gets.values()))
            for name, ours_us in zip(("get, view", "get, owned"), found, strict=False):
                for peer, peer_us in zip(gets, found[len(ours) :], strict=True):
                    if name == "get, view" or peer == stores.MOONCAKE:  # Ray's are views too
                        rows.append(row(name, size, ours_us, "us", peer=peer, peer_value=peer_us))
    return rows


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
