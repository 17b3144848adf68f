"""Makes a ring that this process reads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.client.device.shared import RING_BYTES, Shared
from tests.shm.rings import make_ring


@pytest.fixture
def shared() -> Iterator[Shared]:
    with make_ring(RING_BYTES) as ring, contextlib.ExitStack() as stack:
        yield Shared(ring, stack)
