"""Embeddings come back with their bits, owned; what is wrong is dropped, and a record of another form is a miss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmcached.cache.store_keys import store_key
from mmcached.client import Client
from mmcached.client.device.devices import device_of
from mmcached.client.saver import Saver
from mmcached.integrations.record_form import PartForm
from mmcached.integrations.shared_embeddings import TOGETHER_S, SharedEmbeddings
from tests.client.services import StoreService
from tests.doubles.device import HeldCopies, HeldDevice
from tests.integration.processes import eventually
from tests.present import present

DEADLINE_S = 30.0
ROWS, WIDTH = 7, 16
FORMS = [PartForm((WIDTH,), torch.float32, None)]


@pytest.fixture
def service(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir) as service:
        yield service


@pytest.fixture
def client(service: StoreService, run_dir: Path) -> Iterator[Client]:
    with Client(run_dir, timeout_s=DEADLINE_S) as client:
        yield client


@pytest.fixture
def saver(client: Client) -> Iterator[Saver]:
    with Saver(client, max_bytes=1 << 20) as saver:
        yield saver


@pytest.fixture
def tensors(client: Client, saver: Saver) -> SharedEmbeddings:
    return SharedEmbeddings(client, saver, device_of("cpu", max_pinned_bytes=0), FORMS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_an_embedding_comes_back_owned_with_its_bits(
    tensors: SharedEmbeddings, saver: Saver, dtype: torch.dtype
) -> None:
    embedding = torch.randn(7, 16).to(dtype)
    assert tensors.get("x") is None
    assert tensors.save("x", embedding)
    assert saver.drain(DEADLINE_S)
    found = present(tensors.get("x"))
    assert found.dtype == dtype
    assert torch.equal(found, embedding)
    found.zero_()  # a view would end this process
    again = present(tensors.get("x"))
    assert torch.equal(again, embedding)


def test_embeddings_cost_what_the_engine_took_after_its_last_miss(
    service: StoreService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([1.0, 50.0, 54.0])
    monkeypatch.setattr("mmcached.client.device.stopwatch.time", SimpleNamespace(perf_counter=lambda: next(times)))
    with Saver(client, max_bytes=1 << 20, delay_s=100 * TOGETHER_S) as saver:  # on a busy machine, too
        tensors = SharedEmbeddings(client, saver, device_of("cpu", max_pinned_bytes=0), FORMS)
        tensors.note_miss()
        tensors.note_miss()
        for key, num_rows in {"small": 1, "large": 3}.items():
            tensors.save(key, torch.zeros(num_rows, WIDTH))
        assert saver.drain(DEADLINE_S)
    found: list[float] = []
    saved = service.desk.records.saved
    service.call(lambda: found.extend(saved.cost_s(store_key("", key)) for key in ("small", "large")))
    assert found == [1.0, 3.0]


def test_an_embedding_stays_until_the_device_has_read_it(service: StoreService, client: Client, saver: Saver) -> None:
    copies, embedding = HeldCopies(), torch.randn(40, 16)
    device = HeldDevice(copies)
    tensors = SharedEmbeddings(client, saver, device, FORMS)
    tensors.save("x", embedding)
    assert saver.drain(DEADLINE_S)
    found = tensors.get("x")
    tensors.drop("x")
    for number in range(100):  # the store is filled more than once
        client.put(f"{number}", {"x": torch.zeros(1 << 18, dtype=torch.uint8)})
    assert service.leases == 1
    copies.begun[0].end()
    assert found is not None
    assert torch.equal(found, embedding)
    eventually(lambda: service.leases, lambda leases: leases == 0, "the lease to be back")
    device.close()


def test_a_part_of_a_batch_is_saved_alone(tensors: SharedEmbeddings, saver: Saver, client: Client) -> None:
    batch = torch.randn(64, 8).requires_grad_()
    tensors.save("x", batch[8:16].t())
    assert saver.drain(DEADLINE_S)
    hit = present(client.get("x"))
    assert torch.equal(hit.record["embedding"], batch.detach()[8:16].t())
    assert hit.record["embedding"].untyped_storage().nbytes() == 8 * 8 * 4


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"embedding": 7},
        {"embedding": torch.zeros(WIDTH)},
        {"other": torch.zeros(ROWS, WIDTH)},
        {"embedding": [torch.zeros(ROWS, WIDTH)]},
        {"embedding": torch.zeros(1, ROWS, WIDTH)},
        {"embedding": torch.zeros(ROWS, 2 * WIDTH)},
        {"embedding": torch.zeros(ROWS, WIDTH, dtype=torch.int64)},
        {"embedding": torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16)},
        {"embedding": torch.full((ROWS, WIDTH), torch.nan)},
    ],
)
def test_a_record_that_the_model_cannot_take_is_a_miss_and_replaced(
    tensors: SharedEmbeddings, saver: Saver, client: Client, record: dict[str, Any]
) -> None:
    assert client.put("x", record)
    assert tensors.get("x") is None
    right = torch.ones(ROWS, WIDTH)
    tensors.save("x", right)
    assert saver.drain(DEADLINE_S)
    found = present(tensors.get("x"))
    assert torch.equal(found, right)


def test_a_record_of_any_number_of_rows_is_found_before_anything_is_encoded(
    tensors: SharedEmbeddings, client: Client
) -> None:
    assert client.put("x", {"embedding": torch.ones(3 * ROWS, WIDTH)})
    assert tensors.get("x") is not None


def test_an_embedding_of_more_dimensions_is_saved_as_rows(tensors: SharedEmbeddings, saver: Saver) -> None:
    embedding = torch.randn(2, ROWS, WIDTH)
    tensors.save("x", embedding)
    assert saver.drain(DEADLINE_S)
    found = present(tensors.get("x"))
    assert torch.equal(found, embedding.reshape(-1, WIDTH))
    assert not tensors.save("y", torch.zeros(WIDTH))


def test_what_is_wrong_is_dropped_for_all(tensors: SharedEmbeddings, saver: Saver) -> None:
    tensors.save("x", torch.zeros(2, 2))
    assert saver.drain(DEADLINE_S)
    tensors.drop("x")
    assert tensors.get("x") is None
    tensors.save("x", torch.ones(3, 2))
    assert saver.drain(DEADLINE_S)
    found = present(tensors.get("x"))
    assert found.shape == (3, 2)
