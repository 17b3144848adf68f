"""`mmcached verify` with the service's own encoder: found outputs are encoded again, compared and replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mmcached.cli.admin.verify import watch
from mmcached.client import Client
from mmcached.frontend.store import verification
from mmcached.wire.stats import StoreStats
from tests.integration.local_service import LocalService, without_caches
from tests.integration.processes import eventually, small_config, stats_of
from tests.integration.workloads import assert_same, photo

IMAGES = [photo(index) for index in range(4)]
NUM = len(IMAGES)


@pytest.fixture(scope="module")
def wanted() -> list[Any]:
    with without_caches() as client:
        return client.encode(IMAGES)


SMALL_CACHE = {"encoder_cache_size": 1, "max_num_batched_tokens": 32}


def fill_caches(client: Client, turn: int) -> None:
    """Have the engine's own cache forget the images: it encodes more others than it has room for."""
    first = NUM + 32 * turn
    for start in range(first, first + 32, 8):
        client.encode([photo(index) for index in range(start, start + 8)])


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a verification last for a whole test, on however busy a machine."""
    monkeypatch.setattr(verification, "VERIFY_S", 600.0)


def counted(run_dir: Path, verified: int) -> StoreStats:
    return eventually(
        lambda: stats_of(run_dir).store, lambda now: now.verified >= verified, f"{verified} verified hits"
    )


def spoil(client: Client, key: str) -> None:
    """Put other bytes under a key."""
    hit = client.get(key)
    assert hit is not None
    record: Any = hit.record
    record["embeddings"][0, 0] += 1
    assert client.put(key, record, overwrite=True)


def all_stored(client: Client) -> list[str]:
    return eventually(lambda: client.keys("encoder/*"), lambda keys: len(keys) >= NUM, "all outputs are saved")


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_output_that_differs_is_found_and_ends_the_sharing(
    world_size: int, run_dir: Path, wanted: list[Any]
) -> None:
    config = small_config(world_size=world_size, **SMALL_CACHE)
    with LocalService(run_dir, config, saves_outputs=True), Client(run_dir) as client:
        assert_same([client.encode(IMAGES)], [wanted])
        all_stored(client)
        fill_caches(client, 0)
        client.verify(1.0)
        assert_same([client.encode(IMAGES)], [wanted])
        assert counted(run_dir, NUM).different == 0
        client.verify(0.0)
        fill_caches(client, 1)
        verified = stats_of(run_dir).store.verified
        for key in client.keys("encoder/*"):
            spoil(client, key)
        with capture_logs() as logs:
            client.verify(1.0)
            assert_same([client.encode(IMAGES)], [wanted])
            assert counted(run_dir, verified + 1).different >= 1
        told = [each for each in logs if "differs" in each["event"]]
        assert "1 of" in told[0]["difference"]
        eventually(lambda: client.keys("encoder/*"), lambda keys: keys == [], "no output is shared")
        report = watch(client, 1.0, 0.0)
        assert report.refused == [told[0]["key"].rpartition("/")[0] + "/"]
        for _ in range(2):
            assert client.keys("encoder/*") == []
        client.flush()
        assert_same([client.encode(IMAGES)], [wanted])
        all_stored(client)


def test_what_a_generation_finds_is_verified_too(run_dir: Path) -> None:
    config = small_config(world_size=1, **SMALL_CACHE)
    with LocalService(run_dir, config, saves_outputs=True), Client(run_dir) as client:
        wanted = client.generate("what is <image>", IMAGES[:1], 4)
        eventually(lambda: client.keys("encoder/*"), lambda keys: len(keys) >= 2, "it is saved")
        for key in client.keys("encoder/*"):
            spoil(client, key)
        fill_caches(client, 1)
        client.verify(1.0)
        assert client.generate("what is a <image>", IMAGES[:1], 4) != wanted
        assert counted(run_dir, 1).different >= 1
