"""A miss on P1 never reaches the user: forced drift, in each mode that can have it, is healed by one resend."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.client import Client
from mmcached.engine.server.frontend_connection import FrontendConnection
from tests.integration.local_service import LocalService
from tests.integration.test_bit_identical import base
from tests.integration.workloads import photo

PROMPT = "what is <image> beside <image>?"
PHOTOS = [photo(0), photo(1)]


def test_lru_engine_that_has_lost_its_items_is_sent_them_again(run_dir: Path) -> None:
    config = base(
        mm_processor_cache_type="lru", world_size=1, encoder_cache_scope="request", enable_prefix_caching=False
    )
    with LocalService(run_dir, config) as service, Client(run_dir) as client:
        wanted = client.generate(PROMPT, PHOTOS).tokens
        processed = client.stats().processor.items_processed
        service.engine._items.clear_cache()
        assert client.generate(PROMPT, PHOTOS).tokens == wanted
        stats = client.stats()
        assert stats.resends == 1
        assert stats.desyncs == 2, "this is what the counter is for"
        assert stats.processor.items_processed == processed + 2
        assert client.generate(PROMPT, PHOTOS).tokens == wanted
        assert client.stats().resends == 1, "both ends agree again"


def test_descriptors_of_an_earlier_life_are_replaced_by_fresh_ones(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shm: an engine that does not take a request's descriptors for its own misses the items; they come again."""
    config = base(world_size=1)
    with LocalService(run_dir, config), Client(run_dir) as client:
        wanted = client.generate(PROMPT, PHOTOS).tokens
        receive, answers = FrontendConnection.receive, iter([False, False])
        monkeypatch.setattr(
            FrontendConnection,
            "receive",
            lambda connection, *lease: receive(connection, *lease) and next(answers, None) is not False,
        )
        assert client.generate(PROMPT, PHOTOS).tokens == wanted
        assert client.stats().resends == 1
