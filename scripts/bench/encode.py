"""Measures how often an image is encoded on one host, and what it costs to keep what is never asked for again.

engines   four engines are each asked for the same new images at once: runs of the encoder, and the time, against one
          engine alone
ranks     one engine of four ranks is asked for new images: runs of the encoder per image
travel    a large embedding through shared memory, against inline and against a hit of the store
one use   every image is new: the time of an embedding with the store, against a service without one, in pairs; and the
          CPU time of all processes together

Services of real processes, the reference encoder on CPUs; the machine's cores are shared by all.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from PIL import Image

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import AsyncClient, Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.model_config import ModelConfig
from scripts.bench import encode_travel, harness
from scripts.bench.harness import Bound, Row, compare, row

NUM_IMAGES = 32
NUM_ENGINES = 4
WORLD_SIZE = 4
SIDE = 256
MODEL = ModelConfig(encoder_width=384)
ROUNDS = 7
QUICK_ROUNDS = 2
NUM_NEW = 16
PAIRS_PER_ROUND = 8
NEW = "every image is new"
BOUNDS = [
    Bound("reach", "encoder runs", f"{NUM_ENGINES} engines, {NUM_IMAGES} images, each by each", "images", 1.0),
    Bound("reach", "time of all answers", f"{NUM_ENGINES} engines, {NUM_IMAGES} images, each by each", "one", 1.3),
    Bound("reach", "encoder runs", f"{WORLD_SIZE} ranks, {NUM_IMAGES} images", "images", 1.0),
    Bound("reach", "time of an embedding", NEW, "no store", 1.03),
    *encode_travel.BOUNDS,
]
_seeds = count()


def new_images(number: int, side: int = SIDE) -> list[bytes]:
    """Return so many pictures that nobody has seen."""
    images = []
    for _ in range(number):
        noise = random.Random(next(_seeds)).randbytes(3 * 16 * 16)
        buffer = io.BytesIO()
        Image.frombytes("RGB", (16, 16), noise).resize((side, side)).save(buffer, "PNG", compress_level=1)
        images.append(buffer.getvalue())
    return images


@contextlib.contextmanager
def service(**settings: object) -> Iterator[Path]:
    fields: dict[str, object] = {"world_size": 1, "device": "cpu", "model": MODEL, "log_level": "error"}
    config = ServiceConfig(**(fields | settings))  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch:
        run_dir = Path(scratch) / "s"
        with ChildService(run_dir, config, Path(scratch) / "config.json"):
            yield run_dir


def runs(run_dir: Path) -> int:
    """Return how often encoders of a service have run, all ranks and engines together, when all is at rest."""
    with Client(run_dir) as client:
        before = -1
        while True:
            stats = client.stats()
            now = sum(worker.items_encoded for engine in stats.engines for worker in engine.workers)
            if now == before and not stats.requests_open:
                return now
            before = now
            time.sleep(1.5)  # figures are published four times a second


async def ask(run_dir: Path, images: list[bytes], num_times: int) -> float:
    """Return the milliseconds until each image has been asked about so many times, all at once."""
    async with AsyncClient(run_dir) as client:
        began = time.perf_counter()
        await asyncio.gather(*(client.generate("<image>", [image], 1) for image in images for _ in range(num_times)))
        return (time.perf_counter() - began) * 1e3


def engines(num_rounds: int) -> Iterator[Row]:
    params = f"{NUM_ENGINES} engines, {NUM_IMAGES} images, each by each"
    routed = {"data_parallel_size": NUM_ENGINES, "routing_policy": "round_robin", "enable_prefix_caching": False}
    with service(**routed) as several, service(enable_prefix_caching=False) as one:
        before = runs(several)
        samplers = {
            "several": lambda: asyncio.run(ask(several, new_images(NUM_IMAGES), NUM_ENGINES)),
            "one": lambda: asyncio.run(ask(one, new_images(NUM_IMAGES), 1)),
        }
        taken = compare(samplers, num_rounds)
        num_runs = (runs(several) - before) / (num_rounds + 1)
    yield row("encoder runs", params, num_runs, "runs", peer="images", peer_value=NUM_IMAGES)
    yield row("time of all answers", params, taken["several"], "ms", peer="one", peer_value=taken["one"])


def ranks(num_rounds: int) -> Iterator[Row]:
    with service(world_size=WORLD_SIZE) as run_dir:
        before = runs(run_dir)
        for _ in range(num_rounds):
            asyncio.run(ask(run_dir, new_images(NUM_IMAGES), 1))
        num_runs = (runs(run_dir) - before) / num_rounds
    params = f"{WORLD_SIZE} ranks, {NUM_IMAGES} images"
    yield row("encoder runs", params, num_runs, "runs", peer="images", peer_value=NUM_IMAGES)


def one_use(num_rounds: int) -> Iterator[Row]:
    """Measure in pairs, so that whatever else this machine does meanwhile is the same for both."""
    with service() as kept, service(store_gb=0) as off, Client(kept) as ours, Client(off) as theirs:
        sides = {kept: ours, off: theirs}
        pairs = []
        for number in range(PAIRS_PER_ROUND * num_rounds + 1):
            order = [kept, off] if number % 2 else [off, kept]
            taken = {run_dir: embed(run_dir, sides[run_dir]) for run_dir in order}
            pairs.append((taken[kept], taken[off]))
    for index, name in enumerate(("time of an embedding", "CPU time of an embedding")):
        mine, others = ([pair[side][index] for pair in pairs[1:]] for side in (0, 1))
        median = statistics.median(others)
        ratios = statistics.quantiles([one / other for one, other in zip(mine, others, strict=True)], n=4)
        for what, ratio in zip((", lower quartile of pairs", "", ", upper quartile of pairs"), ratios, strict=True):
            yield row(name, NEW + what, ratio * median, "ms", peer="no store", peer_value=median)


def embed(run_dir: Path, client: Client) -> tuple[float, float]:
    """Return the milliseconds for an embedding of a new image, each asked for when the last one is there; and the CPU
    milliseconds of all processes for one, together with what comes behind its answer.
    """
    images = new_images(NUM_NEW)
    cpu_before, began = cpu_ms(run_dir), time.perf_counter()
    for image in images:
        client.encode([image])
    taken_ms = (time.perf_counter() - began) * 1e3
    time.sleep(0.05)
    return taken_ms / NUM_NEW, (cpu_ms(run_dir) - cpu_before) / NUM_NEW


def cpu_ms(run_dir: Path) -> float:
    """Return the CPU time of all processes of a service, its decoders included, and of this one, so far."""
    processes = set()
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(run_dir).encode() in command.read_bytes():
                decoders = [pid for each in command.parent.glob("task/*/children") for pid in each.read_text().split()]
                processes |= {command.parent, *(Path("/proc") / pid for pid in decoders)}
    total_ns = time.process_time_ns()
    for each in (task for process in processes for task in process.glob("task/*/schedstat")):
        with contextlib.suppress(OSError):
            total_ns += int(each.read_text().split()[0])
    return total_ns / 1e6


def travel(num_rounds: int) -> Iterator[Row]:
    (picture,) = new_images(1, encode_travel.SIDE)
    with service(**encode_travel.SETTINGS) as shared, service(store_gb=0, **encode_travel.SETTINGS) as inline:
        yield from encode_travel.travel(shared, inline, picture, 3 * num_rounds)


SECTIONS = {"engines": engines, "ranks": ranks, "travel": travel, "one use": one_use}


if __name__ == "__main__":
    harness.main(
        "encoder outputs",
        SECTIONS,
        lambda undo: SECTIONS,
        rounds=(ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
