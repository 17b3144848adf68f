"""`mmcached verify` with Transformers: a record with other bits than the tower's is found, counted and not shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from mmcached.client import Client
from mmcached.frontend.store import verification
from mmcached.integrations.transformers import CachedImageProcessor, cached_image_features
from mmcached.wire.stats import StoreStats
from tests.client.services import StoreService
from tests.hosts.transformers import models
from tests.hosts.transformers.outputs import ask, assert_equal, one_by_one, tensors
from tests.integration.processes import eventually


@pytest.fixture
def service(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir, store_gb=1 / 16) as service:
        yield service


@pytest.fixture
def client(service: StoreService) -> Iterator[Client]:
    with Client(service.directory.path, fail_open=False) as client:
        yield client


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a verification last for a whole test, on however busy a machine."""
    monkeypatch.setattr(verification, "VERIFY_S", 600.0)


def counted(service: StoreService, verified: int) -> StoreStats:
    def look() -> StoreStats:
        found: list[StoreStats] = []
        service.call(lambda: found.append(service.desk.stats()))
        return found[0]

    return eventually(look, lambda now: now.verified == verified, f"{verified} verified hits")


def spoil(client: Client, key: str) -> None:
    """Change one bit of the record of a key."""
    hit = client.get(key)
    assert hit is not None
    record: Any = hit.record
    name = next(iter(record))
    tensor = record[name] if isinstance(record[name], torch.Tensor) else record[name][0]
    tensor.view(-1).view(torch.uint8)[0] ^= 1
    assert client.put(key, record, overwrite=True)


@pytest.mark.parametrize("family", [models.GENERATIVE[0].__name__, models.GENERATIVE[2].__name__])
@torch.no_grad()
def test_a_bit_that_differs_is_found_and_ends_the_sharing(service: StoreService, client: Client, family: str) -> None:
    model, inputs = models.make(family)
    wanted = one_by_one(model, inputs)
    with cached_image_features(model, client) as features:
        ask(model, inputs)
        client.verify(1.0)
        assert_equal(tensors(ask(model, inputs)), wanted)
        assert features.num_encoded == 4, "hits are encoded again"
        assert counted(service, 2).different == 0
        spoil(client, client.keys("encoder/*")[0])
        assert_equal(tensors(ask(model, inputs)), wanted)
        found = counted(service, 4)
        assert (found.different, found.refused_names) == (1, 1)
        assert client.keys("encoder/*") == []
        client.verify(0.0)
        for _ in range(2):
            assert_equal(tensors(ask(model, inputs)), wanted)
        assert features.num_encoded == 10, "nothing is shared under this name"
        client.flush()
        ask(model, inputs)
        ask(model, inputs)
        assert features.num_encoded == 12


@torch.no_grad()
def test_processed_images_are_verified_too(service: StoreService, client: Client) -> None:
    cached = CachedImageProcessor(CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=32), client)
    picture = (models.pictures(3, 40, 40) * 60 + 128).clamp(0, 255).to(torch.uint8).numpy()
    wanted = cached([picture], return_tensors="pt")["pixel_values"]
    client.verify(1.0)
    (key,) = [key for key in client.keys("*") if not key.startswith("encoder/")]
    spoil(client, key)
    assert torch.equal(cached([picture], return_tensors="pt")["pixel_values"], wanted)
    assert counted(service, 1).different == 1
    assert client.keys() == []
