"""A hit saves what the record's computation took; who found it does not matter."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.cache.store_keys import ITEMS_TENANT, about_record, parse_about, store_key
from mmcached.client import Client
from mmcached.client.store.claims import Claim
from mmcached.frontend.store.saved_seconds import SavedSeconds
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.saved_stats import SavedOfModality, SavedStats
from mmcached.wire.stats import StoreStats, TenantStats
from tests.client.services import StoreService
from tests.shm.processes import DEADLINE_S

LARGE = {"x": np.zeros(200_000, np.uint8)}  # laid into a nursery


def stats(service: StoreService) -> StoreStats:
    found: list[StoreStats] = []

    def look() -> None:
        service.desk.records.poll_hits()
        found.append(service.desk.stats())

    service.call(look)
    return found[0]


def claims(client: Client, *keys: str) -> list[Claim]:
    return [each for each in client.claim_many(list(keys)) if isinstance(each, Claim)]


def test_sums_by_kind_modality_and_tenant() -> None:
    saved = SavedSeconds()
    saved.learn("a", "t", "encoder/f/x", 1.5)
    saved.learn("b", "", "mine", 0.25)
    saved.learn("c", ITEMS_TENANT, "hash", 0.5)
    for name, tenant in (("a", "t"), ("a", "t"), ("b", ""), ("c", "t"), ("d", "t")):
        saved.hit(name, tenant)
    without = SavedOfModality(encoder_us=3_000_000, processor_us=500_000)
    assert saved.stats() == SavedStats(other=without, other_us=250_000)
    assert saved.by_tenant() == {"t": TenantStats(saved_us=3_500_000), "default": TenantStats(saved_us=250_000)}
    saved.set_modality("a", "video")
    saved.set_modality("c", "image")
    saved.set_modality("d", "audio")
    for name in ("a", "c", "d"):
        saved.hit(name, "t")
    of_video, of_image = SavedOfModality(encoder_us=1_500_000), SavedOfModality(processor_us=500_000)
    known = SavedStats(video=of_video, image=of_image, other=without, other_us=250_000)
    assert saved.stats() == known
    assert (known.encoder_us, known.processor_us) == (4_500_000, 1_000_000)
    assert saved.cost_s("a") == 1.5
    saved.forget("a")
    saved.hit("a", "t")
    assert saved.stats() == known


@pytest.mark.parametrize(
    ("key", "saved"),
    [
        ("processed/p/i", SavedStats(image=SavedOfModality(processor_us=1_000_000))),
        ("processed-item/p/i/counts", SavedStats(other=SavedOfModality(processor_us=1_000_000))),
        ("decoded-film/p/i", SavedStats(video=SavedOfModality(processor_us=1_000_000))),
        ("encoder/p/video/i", SavedStats(video=SavedOfModality(encoder_us=1_000_000))),
        ("encoder/p/vision_chunk/i", SavedStats(other=SavedOfModality(encoder_us=1_000_000))),
        ("encoder/p/image", SavedStats(other=SavedOfModality(encoder_us=1_000_000))),
        ("encoder/p/image/of/mine", SavedStats(image=SavedOfModality(encoder_us=1_000_000))),
        ("conditioning/p/i", SavedStats(other=SavedOfModality(encoder_us=1_000_000))),
        ("encoders/p/i", SavedStats(other_us=1_000_000)),
    ],
)
def test_an_adapter_s_key_has_its_kind(key: str, saved: SavedStats) -> None:
    sums = SavedSeconds()
    sums.learn("a", "t", key, 1.0)
    sums.hit("a", "t")
    assert sums.stats() == saved


@pytest.mark.parametrize(
    ("cost_s", "kept_s"), [(0.0, 0.0), (0.123456, 0.12346), (42_000.0, 42_000.0), (1e9, 42949.67295)]
)
def test_the_note_keeps_the_cost(cost_s: float, kept_s: float) -> None:
    about = parse_about(about_record("tenant", "key", 7, cost_s))
    assert about is not None
    assert about[:3] == ("tenant", "key", 7)
    assert about.cost_s == pytest.approx(kept_s)


@pytest.mark.parametrize("record", [{"x": 1}, LARGE], ids=["small", "large"])
def test_each_hit_counts_the_cost_of_the_put(run_dir: Path, record: Any) -> None:
    with StoreService(run_dir, store_gb=1 / 32) as service, Client(run_dir, fail_open=False) as client:
        client.put("encoder/f/x", record, cost_s=2.0)
        client.put("mine", record)
        for _ in range(3):
            for key in ("encoder/f/x", "mine"):
                hit = client.get(key, tensors="numpy")
                assert hit is not None
                hit.close()
        deadline = time.monotonic() + DEADLINE_S
        while stats(service).saved.encoder_us < 6_000_000 and time.monotonic() < deadline:
            pass
        assert (stats(service).saved.encoder_us, stats(service).saved.other_us) == (6_000_000, 0)


def test_a_claim_and_a_computation_measure_their_time(run_dir: Path) -> None:
    with StoreService(run_dir) as service, Client(run_dir, fail_open=False) as client:
        records = service.desk.records
        (claim,) = claims(client, "claimed")
        client.put("claimed", {"x": 1}, claim=claim)
        client.get_or_compute("computed", lambda: {"x": 1})
        one, other = claims(client, "stated", "dropped")
        client.put("stated", {"x": 1}, claim=one, cost_s=5.0)
        other.drop()
        assert other.cost_s() == 0.0
        costs = {key: records.saved.cost_s(store_key("", key)) for key in ("claimed", "computed", "stated")}
        assert costs["claimed"] > 0
        assert costs["computed"] >= 0
        assert costs["stated"] == 5.0


@pytest.mark.parametrize("cost_s", [-1, float("nan"), float("inf"), "1", True])
def test_a_cost_that_is_no_number_of_seconds_is_refused(run_dir: Path, cost_s: Any) -> None:
    with (
        StoreService(run_dir),
        Client(run_dir, fail_open=False) as client,
        pytest.raises(InvalidRequest, match="cost_s"),
    ):
        client.put("k", {"x": 1}, cost_s=cost_s)
