"""Makes a store, and engines that share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.services import StoreService
from tests.integrations.vllm.steps import DEADLINE_S, Steps


@pytest.fixture
def store(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir) as service:
        yield service


@pytest.fixture
def new_engine(store: StoreService, run_dir: Path) -> Iterator[Callable[..., Steps]]:
    engines: list[Steps] = []

    def make(**named: Any) -> Steps:
        engines.append(Steps(run_dir, **named))
        assert engines[-1].contact.wait(DEADLINE_S)
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
        engine.close()
