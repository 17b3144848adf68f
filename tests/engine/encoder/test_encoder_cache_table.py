"""Both encoder cache managers keep the promises of their books."""

from __future__ import annotations

import pytest

from mmcached.engine import make_encoder_cache_manager
from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from tests.engine.encoder_promises import CACHE_SIZE, ENCODER_BOOK_PROMISES, Promise


@pytest.fixture(params=["shared", "request"])
def book(request: pytest.FixtureRequest) -> EncoderCacheTable:
    return make_encoder_cache_manager(request.param, CACHE_SIZE)


@pytest.mark.parametrize("promise", ENCODER_BOOK_PROMISES, ids=lambda promise: promise.__name__)
def test_promises(promise: Promise, book: EncoderCacheTable) -> None:
    promise(book)
