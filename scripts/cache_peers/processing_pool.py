"""The threads that process: how much more they do than one, and what their work costs the loop that serves hits.

Photographs of many sizes are made from one of the scikit-image wheel's; without it, from noise.
"""

from __future__ import annotations

import io
import select
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image

from benchmark import Row, row
from mmcached.frontend.open_requests import OpenRequest
from mmcached.frontend.preparing import Preparing
from mmcached.frontend.processing import Processed, Processing
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.frontend import Encode

SIZES_MPX = (0.3, 2.0, 8.0, 20.0)
LARGE_FILE_BYTES = int(4.7 * (1 << 20))
WAIT_S = 60.0
_CLIENT = "0" * 32


class Kept:
    """A cache that keeps keys, and no item."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in dict.fromkeys(keys) if key not in self.keys]

    def keep(self, key: str, processed: Processed) -> None:
        self.keys.add(key)


class Loop:
    """What the frontend's loop does with `Preparing`, and nothing else."""

    def __init__(self, config: ServiceConfig) -> None:
        self.processing = Processing(config)
        self.kept = Kept()
        self.preparing = Preparing(config, self.processing, self.kept)
        self.waiting: set[int] = set()
        self._numbers = count(1)

    def start(self, data: bytes) -> int:
        """Begin a request of one image; return its number, which is in `waiting` unless it could be sent."""
        number = next(self._numbers)
        self.waiting.add(number)
        self._advance(OpenRequest(number, b"", Encode(_CLIENT, number, WAIT_S), [data], 0.0))
        return number

    def serve(self) -> None:
        """Wait for the threads once, and send what can be sent."""
        select.select([self.preparing], [], [], WAIT_S)
        for request in self.preparing.collect():
            self._advance(request)

    def _advance(self, request: OpenRequest) -> None:
        if self.preparing.advance(request) is not None:
            self.preparing.leave(request.number, has_used=True)
            self.waiting.remove(request.number)


@contextmanager
def loop(num_workers: int) -> Iterator[Loop]:
    made = Loop(ServiceConfig(mm_processor_workers=num_workers, mm_processor_max_waiting=1024))
    try:
        yield made
    finally:
        made.preparing.close()


def pool_rows(repeats: int) -> list[Row]:
    files = {mpx: photograph(mpx) for mpx in SIZES_MPX}
    return [*_rates(files, repeats), *_hits(files[2.0], repeats)]


def _rates(files: Mapping[float, bytes], repeats: int) -> list[Row]:
    """Items per second of two threads, and of one."""
    rows = []
    for mpx, data in files.items():
        number = max(4, round(24 / mpx**0.5))
        rates: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(repeats):
            for num_workers, seen in rates.items():
                with loop(num_workers) as made:
                    seen.append(_rate(made, data, number))
        one, two = (statistics.median(seen) for seen in rates.values())
        rows.append(row("processing: two threads", f"{mpx} Mpx", two, "items/s", peer="one thread", peer_value=one))
    return rows


def _rate(made: Loop, data: bytes, number: int) -> float:
    started = time.perf_counter()
    # A few bytes after the end of a file make it another file of the same picture.
    for index in range(number):
        made.start(data + bytes([index]))
    while made.waiting:
        made.serve()
    return number / (time.perf_counter() - started)


def _hits(busy_file: bytes, repeats: int) -> list[Row]:
    """From a request's arrival until it can be sent, all its items being cached; beside work, and without."""
    small, large = photograph(0.3), photograph(0.3) + bytes(LARGE_FILE_BYTES)
    with loop(2) as made:
        made.kept.keys.update(made.processing.key(data, "") for data in (small, large))
        names = {"small": small, "4.7 MiB": large}
        quiet = {name: _hit_us(made, data, None, 40 * repeats) for name, data in names.items()}
        busy = {name: _hit_us(made, data, busy_file, 40 * repeats) for name, data in names.items()}
        processing_us = 1e6 / _rate(made, busy_file + b"one", 1)
    rows = []
    for name in names:
        params = f"{name} file, two threads process 2 Mpx"
        rows.append(row("hit beside work", params, busy[name], "us", peer="the same, no work", peer_value=quiet[name]))
        rows.append(row("hit beside work", params, busy[name], "us", peer="one item's work", peer_value=processing_us))
    return rows


def _hit_us(made: Loop, data: bytes, busy_file: bytes | None, number: int) -> float:
    """Return the median time of a hit; with `busy_file`, while at least four items are in work or wait."""
    times = []
    unique = count()
    for _ in range(number):
        while busy_file is not None and len(made.waiting) < 4:
            made.start(busy_file + b"%d" % next(unique))
        started = time.perf_counter_ns()
        hit = made.start(data)
        while hit in made.waiting:
            made.serve()
        times.append((time.perf_counter_ns() - started) / 1000)
    while made.waiting:
        made.serve()
    return statistics.median(times)


def photograph(mpx: float) -> bytes:
    """Return a JPEG of that many million pixels."""
    width = int((mpx * 1e6 * 4 / 3) ** 0.5)
    buffer = io.BytesIO()
    _source().resize((width, width * 3 // 4), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def _source() -> Image.Image:
    try:
        path = Path(str(distribution("scikit-image").locate_file("skimage/data/retina.jpg")))
    except PackageNotFoundError:
        noise = np.random.default_rng(0).integers(0, 256, (96, 128, 3), dtype=np.uint8)
        return Image.fromarray(noise)
    return Image.open(path).convert("RGB")
