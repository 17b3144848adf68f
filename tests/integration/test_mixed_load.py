"""Eight client processes, two workers, everything at once, some calls ended early, clients killed at random.

Every answer is the one that a service without caches gives; each item is preprocessed once, and once more for each time
that the ring had to let go of it or had no room; at the end nobody holds a lease, and no client is left.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from mmcached.cli.demo.run import all_caches_off
from mmcached.cli.serve.child_service import ChildService
from mmcached.wire.config import ServiceConfig
from mmcached.wire.stats import ServiceStats
from tests.integration.json_child import JsonChild, crowd
from tests.integration.local_service import scratch_service
from tests.integration.mixed_child import Question, digest_of
from tests.integration.processes import NUM_ROLE_CLIENTS, eventually, leases_of, small_config, stats_of

NUM_CLIENTS = 8
NUM_IMAGES = 16
IMAGE_SIZE = 96  # 9 patches of 3 KiB: all items are of one size
RING_GB = 640 / (1 << 20)
"""For about 22 items. There are 32, because each image is known by its content and by its id."""


def config(**changes: object) -> ServiceConfig:
    sizes = {"mm_processor_cache_gb": RING_GB, "store_gb": 1 / 128, "max_model_len": 512, "num_kv_blocks": 256}
    return small_config(**(sizes | changes))


def save_images(folder: Path) -> list[str]:
    """Write the files, and return their paths."""
    folder.mkdir()
    paths = []
    for index in range(NUM_IMAGES):
        pixels = np.random.default_rng(index).integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        path = folder / f"{index}.png"
        path.write_bytes(buffer.getvalue())
        paths.append(str(path))
    return paths


def answered_without_caches(paths: list[str]) -> list[Question]:
    """Return generations and encodings that name each image in turn, with their answers."""
    answered = []
    settings = all_caches_off(config(world_size=1, max_num_batched_tokens=512))
    with scratch_service(settings) as (_, client):
        for index, path in enumerate(paths):
            other = paths[(index * 5 + 3) % len(paths)]
            text, images = f"{index}: what is <image>?", [path]
            if index % 4 == 0:
                text, images = f"{index}: is <image> like <image>?", [path, other]
            tokens = client.generate(text, [Path(image) for image in images], 6).tokens
            answered.append(Question(text, images, 6, tokens=tokens))
            digests = [digest_of(embedding.numpy().tobytes()) for embedding in client.encode([Path(path)])]
            answered.append(Question(None, [path], 0, digests=digests))
    return answered


def mixed_child(run_dir: Path, questions: Path, *rough: str) -> Callable[[int], JsonChild]:
    """Return what starts a client with a seed; see `mixed_child` for `rough`."""
    return lambda seed: JsonChild("-m", "tests.integration.mixed_child", run_dir, questions, seed, *rough)


def at_rest(run_dir: Path, num_role_clients: int = NUM_ROLE_CLIENTS) -> ServiceStats:
    """Wait until no request is open, no lease out, and no client there but the one that asks; return the figures."""
    return eventually(
        lambda: stats_of(run_dir),
        lambda now: (
            (leases_of(now), now.requests_open, now.store.computing, now.store.waiting) == (0, 0, 0, 0)
            and now.clients <= 1 + num_role_clients
            and now.store.readers <= num_role_clients
        ),
        "leases, requests and clients return to 0",
    )


def has_evicted(stats: ServiceStats) -> bool:
    return stats.items.evictions > 0


def mixed_load(run_dir: Path, scratch: Path, *, num_kills: int, duration_s: float) -> None:
    """Kill clients one after the other for at least so long and so many times, then look at the books."""
    questions = scratch / "questions.json"
    answered = answered_without_caches(save_images(scratch / "images"))
    questions.write_bytes(msgspec.json.encode(answered))
    with ChildService(run_dir / "s", config(), scratch / "config.json") as service:
        until = time.monotonic() + duration_s
        with crowd(mixed_child(service.run_dir, questions), NUM_CLIENTS) as clients:
            while clients.num_started < NUM_CLIENTS + num_kills or time.monotonic() < until:
                clients.kill_one()
            eventually(lambda: stats_of(service.run_dir), has_evicted, "the ring is full")
            counts = clients.end()
        stats = at_rest(service.run_dir)
        eventually(
            lambda: list((service.run_dir / "clients").iterdir()),
            lambda left: len(left) <= NUM_ROLE_CLIENTS,
            "no client is left",
        )
        assert service.stop() == 0
    print(f"{counts}\n{stats.processor}\n{stats.items}\n{stats.store}")
    for what in ("answers", "streams", "by id alone", "misses", "cancelled", "store hits"):
        assert counts[what] > 0, f"{what}: {counts}"
    _check_books(stats)


def _check_books(stats: ServiceStats) -> None:
    processor, items = stats.processor, stats.items
    # Whatever was processed was put, as probes are, unless there was no room for it; and what was processed again had
    # been evicted. Each image is two items: one by content, one by id.
    assert processor.items_processed <= items.puts + processor.inline_fallbacks
    assert processor.items_processed <= 2 * NUM_IMAGES + items.evictions + processor.inline_fallbacks
    assert processor.hits > 0
    assert (stats.desyncs, stats.protocol_errors, stats.store.ring.fenced_readers) == (0, 0, 0)
    ranks = {
        (worker.items_encoded + worker.items_loaded, worker.tokens_computed) for worker in stats.engines[0].workers
    }
    assert len(ranks) == 1, "both workers have done the same"


@pytest.mark.slow
def test_mixed_load(run_dir: Path, tmp_path: Path) -> None:
    mixed_load(run_dir, tmp_path, num_kills=3, duration_s=0.0)


@pytest.mark.soak
def test_mixed_load_for_a_minute(run_dir: Path, tmp_path: Path) -> None:
    mixed_load(run_dir, tmp_path, num_kills=10, duration_s=60.0)
