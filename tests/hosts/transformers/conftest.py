"""A client of a store that lives in a thread of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcached.client import Client
from tests.client.services import StoreService


@pytest.fixture
def client(run_dir: Path) -> Iterator[Client]:
    with StoreService(run_dir), Client(run_dir, fail_open=False) as client:
        yield client
