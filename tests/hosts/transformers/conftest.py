"""A client of a store that lives in a thread of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import tqdm

from mmcached.client import Client
from tests.client.services import StoreService

tqdm.tqdm.monitor_interval = 0  # else the first progress bar leaves a thread behind


@pytest.fixture
def client(run_dir: Path) -> Iterator[Client]:
    with StoreService(run_dir), Client(run_dir, fail_open=False) as client:
        yield client
