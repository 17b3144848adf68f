"""A miss on P1 never reaches the user: forced drift, in each mode that can have it, is healed by one resend."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from mmcached.client import Client
from mmcached.engine.server.held_records import HeldRecords
from mmcached.wire.messages.parts import StoredItem
from mmcached.worker.payloads import StoreContact
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


@pytest.mark.parametrize("who", [HeldRecords, StoreContact], ids=["the engine", "a worker"])
def test_an_item_that_is_not_in_the_store_when_it_is_looked_for_is_sent_again(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, who: type[HeldRecords | StoreContact]
) -> None:
    """Shm: the items come again as frames, and the client hears nothing of it."""
    config = base(world_size=1, encoder_cache_scope="request", enable_prefix_caching=False)
    with LocalService(run_dir, config) as service, Client(run_dir) as client:
        wanted = client.generate(PROMPT, PHOTOS).tokens
        before = client.stats()
        if who is HeldRecords:
            monkeypatch.setattr(HeldRecords, "lease_items", lambda _, number, payloads: not _are_stored(payloads))
        else:
            monkeypatch.setattr(StoreContact, "open", lambda *_: None)
        assert client.generate(PROMPT, PHOTOS).tokens == wanted
        now = client.stats()
        assert (now.resends - before.resends, now.processor.items_processed) == (1, before.processor.items_processed)
        assert now.processor.inline_items == before.processor.inline_items + 2
        assert service.frontend.stats().items.pinned_bytes == 0


def _are_stored(payloads: Iterable[object]) -> bool:
    return any(isinstance(payload, StoredItem) for payload in payloads)
