"""A store of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.services import StoreService


@pytest.fixture
def store(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir) as running:
        yield running
