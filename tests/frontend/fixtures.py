"""Fixtures for tests of the frontend and of the gateway: a clock, a frontend with peers, held processing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clock import Clock
from tests.doubles.engine import WireEngine
from tests.frontend.fake_peers import Bench
from tests.frontend.integrity import check_frontend
from tests.gateway.held_work import HeldWork


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Clock:
    """A clock that stands still; it moves at each look by the `TICK_S` of a test's module that has one."""
    return Clock(100.0, tick_s=getattr(request.module, "TICK_S", 0.0))


@pytest.fixture
def bench(request: pytest.FixtureRequest, run_dir: Path, clock: Clock) -> Iterator[Bench]:
    """A frontend with the `CONFIG` of the test's module, and peers that are no processes."""
    with Bench(run_dir, request.module.CONFIG, clock) as bench:
        yield bench
        check_frontend(bench.frontend)


@pytest.fixture
def engine(bench: Bench) -> WireEngine:
    return bench.connect_engine()


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldWork]:
    """Processing that stands still where a test wants it, and goes on at the end."""
    work = HeldWork(monkeypatch)
    yield work
    work.release()


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> str:
    """The mode of the processor cache; a test that wants others gives them as parameters."""
    return str(getattr(request, "param", "shm"))
