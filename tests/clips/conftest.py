"""Decoders of clips that are started once for all tests that do not kill them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmcached.gateway.processing.clip_decoders import ClipDecoderPool
from tests.clips.pools import pool_of, warm_up


@pytest.fixture(scope="session")
def living() -> Iterator[ClipDecoderPool]:
    """One decoder of each modality, both alive."""
    with pool_of() as pool:
        warm_up(pool)
        yield pool
