"""A client of a store that lives in a thread of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import tqdm

from mmcached.client import Client
from tests.client.services import StoreService

tqdm.tqdm.monitor_interval = 0  # else the first progress bar leaves a thread behind


@pytest.fixture
def client(run_dir: Path) -> Iterator[Client]:
    with StoreService(run_dir, store_gb=1 / 16), Client(run_dir, fail_open=False) as client:
        yield client


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute with as many threads as the service."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
