"""Measures the decoders beside threads that do the same, and what their work costs the loop that serves hits.

Photographs of many sizes are made from one of the scikit-image wheel's; without it, from noise.
"""

from __future__ import annotations

import io
import select
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image

from mmcached.frontend.store.record_store import RecordStore
from mmcached.gateway.caches.item_cache import ItemCache
from mmcached.gateway.processing.decoder_pool import DecoderPool
from mmcached.gateway.processing.decoder_process import Pixels
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.pixel_budget import PixelBudget
from mmcached.gateway.processing.pool import IsWanted, Mailbox
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.gateway.requests.clip_records import ClipRecords
from mmcached.gateway.requests.item_making import ItemMaking
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.waits import Verb, Waits
from mmcached.pictures.grid import scaled_size
from mmcached.pictures.images import decode_image
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.frontend import Encode
from mmcached.wire.sockets.frames import Frame
from scripts.bench.harness import Row, row

SIZES_MPX = (0.3, 2.0, 8.0, 20.0)
LARGE_FILE_BYTES = int(4.7 * (1 << 20))
WAIT_S = 60.0
_unique = count()
_CLIENT = "0" * 32


class Kept(ItemCache):
    """A cache that keeps keys, and no item."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: set[str] = set()

    def missing(self, keys: Sequence[str]) -> list[str]:
        return [key for key in dict.fromkeys(keys) if key not in self.keys]

    def keep(self, key: str, item: GatewayItem) -> None:
        self.keys.add(key)


class Threads:
    """Decodes files as a `DecoderPool` does, in the threads that ask it."""

    def __init__(self, num_decoders: int, settings: PictureSettings, budget: PixelBudget) -> None:
        self._settings = settings

    def decode(self, data: Frame, is_wanted: IsWanted) -> Pixels:
        size = partial(scaled_size, patch_size=self._settings.patch_size, max_patches=self._settings.max_patches)
        image = decode_image(bytes(data), self._settings, scaled_size=size)
        return Pixels(*image.size, image.tobytes())

    def close(self) -> None:
        pass


def _medium(data: bytes) -> Medium:
    return Medium("image", data, "images[0]")


class Loop:
    """What the frontend's loop does to have items made, and nothing else."""

    def __init__(self, config: ServiceConfig, *, has_threads: bool = False) -> None:
        self.processing = Processing(config)
        self.kept = Kept()
        self.mailbox = Mailbox()
        self._waits: Waits[OpenRequest] = Waits()
        decoders = Threads if has_threads else DecoderPool
        clips = ClipRecords(RecordStore.from_config(config), config, self._waits)
        self.making = ItemMaking(config, self.kept, clips, self.mailbox, self._waits, decoders=decoders)
        self._verbs: dict[int, Verb[None]] = {}
        self._numbers = count(1)

    @property
    def waiting(self) -> set[int]:
        """Numbers of the requests that cannot be sent yet."""
        return {*self._verbs}

    def start(self, file: bytes | Medium) -> int:
        """Begin a request of one image; return its number, which is in `waiting` unless it could be sent."""
        medium = file if isinstance(file, Medium) else _medium(file)
        request = OpenRequest(next(self._numbers), b"", Encode(_CLIENT, 1, WAIT_S), [medium], 0.0)
        self._verbs[request.number] = self._prepare(request)
        self._run(request)
        return request.number

    def serve(self) -> None:
        """Wait for the threads once, and send what can be sent."""
        select.select([self.mailbox], [], [], WAIT_S)
        for done in self.mailbox.take_all():
            self.making.take(done)
        self.making.let_in()
        while (request := self._waits.take_ready()) is not None:
            self._run(request)

    def close(self) -> None:
        self.making.close()
        self.mailbox.close()

    def _prepare(self, request: OpenRequest) -> Verb[None]:
        with self.making.joining(request) as joined:
            yield from self.making.keys(request, joined)
            while self.making.make(request, joined) is None:
                yield from joined.landed()
            joined.has_used = True

    def _run(self, request: OpenRequest) -> None:
        try:
            self._waits.add(next(self._verbs[request.number]), request)
        except StopIteration:
            del self._verbs[request.number]


@contextmanager
def loop(num_workers: int, *, has_threads: bool = False) -> Iterator[Loop]:
    config = ServiceConfig(mm_processor_workers=num_workers, mm_processor_max_waiting=1024)
    made = Loop(config, has_threads=has_threads)
    try:
        yield made
    finally:
        made.close()


def pool_rows(repeats: int) -> list[Row]:
    files = {mpx: photograph(mpx) for mpx in SIZES_MPX}
    return [*_rates(files, repeats), *_hits(files[2.0], repeats)]


def _rates(files: Mapping[float, bytes], repeats: int) -> list[Row]:
    """Items per second of two decoders, of one, and of two threads."""
    rows = []
    for mpx, data in files.items():
        number = max(8, round(48 / mpx**0.5))
        with loop(2) as two, loop(1) as one, loop(2, has_threads=True) as threads:
            loops = (two, one, threads)
            for warm in loops:
                _rate(warm, data + b"first", 4)
            seen = [[_rate(made, data, number) for made in loops] for _ in range(repeats)]
        two_rate, one_rate, threads_rate = (statistics.median(rates) for rates in zip(*seen, strict=True))
        for peer, rate in (("one", one_rate), ("two threads", threads_rate)):
            rows.append(row("processing: two decoders", f"{mpx} Mpx", two_rate, "items/s", peer=peer, peer_value=rate))
    return rows


def _rate(made: Loop, data: bytes, number: int) -> float:
    started = time.perf_counter()
    # A few bytes after the end of a file make it another file of the same picture.
    for _ in range(number):
        made.start(data + b"%d" % next(_unique))
    while made.waiting:
        made.serve()
    return number / (time.perf_counter() - started)


def _hits(busy_file: bytes, repeats: int) -> list[Row]:
    """From a request's arrival until it can be sent, all its items being cached; beside work, and without."""
    small, large = photograph(0.3), photograph(0.3) + bytes(LARGE_FILE_BYTES)
    names = {"small": small, "4.7 MiB": large}
    with loop(2) as made, loop(2, has_threads=True) as threads:
        for one in (made, threads):
            one.kept.keys.update(one.processing.keys(_medium(data), "")[1] for data in names.values())
            _rate(one, busy_file + b"first", 4)
        quiet = {name: _hit_us(made, data, None, 40 * repeats) for name, data in names.items()}
        busy = {name: _hit_us(made, data, busy_file, 40 * repeats) for name, data in names.items()}
        beside_threads = {name: _hit_us(threads, data, busy_file, 40 * repeats) for name, data in names.items()}
        processing_us = 1e6 / _rate(made, busy_file + b"one", 1)
    rows = []
    for name in names:
        params = f"{name} file, two decoders have 2 Mpx"
        peers = {
            "the same, no work": quiet[name],
            "beside two threads": beside_threads[name],
            "one item's work": processing_us,
        }
        rows += [
            row("hit beside work", params, busy[name], "us", peer=peer, peer_value=value)
            for peer, value in peers.items()
        ]
    return rows


def _hit_us(made: Loop, data: bytes, busy_file: bytes | None, number: int) -> float:
    """Return the median time of a hit; with `busy_file`, while at least four items are in work or wait."""
    times = []
    for _ in range(number):
        while busy_file is not None and len(made.waiting) < 4:
            made.start(busy_file + b"%d" % next(_unique))
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
