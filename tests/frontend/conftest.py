from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.frontend.held_work import HeldWork


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
