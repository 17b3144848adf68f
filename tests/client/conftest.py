"""Gives each test of the clients' promises both clients, and a service to ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.blocking import CLIENTS, Make
from tests.client.services import StoreService


@pytest.fixture(params=CLIENTS)
def make(request: pytest.FixtureRequest) -> Make:
    """Return what makes a client: `Client` or `AsyncClient`."""
    return CLIENTS[request.param]


@pytest.fixture
def reader_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients read in Python, for a test that changes what the reader in Python does."""
    monkeypatch.setenv("MMCACHED_NATIVE", "0")


@pytest.fixture
def service(run_dir: Path) -> Iterator[StoreService]:
    """Serve the test's run directory."""
    with StoreService(run_dir) as running:
        yield running


@pytest.fixture
def known(service: StoreService) -> StoreService:
    """Return a service whose engines have said which encoder they have."""
    service.encoder_fingerprint = "f"
    return service


@pytest.fixture
def client(service: StoreService, make: Make, run_dir: Path) -> Iterator[Any]:
    """Connect a client of each kind to the service."""
    with make(run_dir) as opened:
        yield opened
