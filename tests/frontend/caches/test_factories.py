"""Which cache a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import pytest

from mmcached.engine.server.receiver_cache import engine_receiver_cache_from_config
from mmcached.frontend.caches.factories import processor_cache_from_config, processor_only_cache_from_config
from mmcached.frontend.caches.lru_sender_cache import MultiModalProcessorSenderCache
from mmcached.frontend.caches.processor_only_cache import MultiModalProcessorOnlyCache
from mmcached.frontend.caches.sender_cache import ShmItem, ShmObjectStoreSenderCache
from mmcached.shm import ObjectStoreWriter, ReaderRow, RingWriter
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.worker.receiver import worker_receiver_cache_from_config
from tests.contracts import an_item

SMALL = (1 << 20) / GIB


@pytest.fixture
def store() -> Iterator[ObjectStoreWriter]:
    ring = RingWriter.create(data_bytes=1 << 20, num_slots=64, max_rows=2, max_object_bytes=1 << 20)
    with ObjectStoreWriter(ring) as store:
        yield store


def test_shm(store: ObjectStoreWriter) -> None:
    cache = processor_cache_from_config(
        ServiceConfig(mm_processor_cache_gb=SMALL, mm_processor_cache_type="shm"), store
    )
    assert type(cache) is ShmObjectStoreSenderCache
    cache.close()


@pytest.mark.parametrize(
    "config",
    [ServiceConfig(mm_processor_cache_gb=0), ServiceConfig(mm_processor_cache_gb=SMALL, is_multimodal_model=False)],
    ids=["no bytes", "no multimodal model"],
)
def test_off(config: ServiceConfig, store: ObjectStoreWriter) -> None:
    assert processor_cache_from_config(config, store) is None


@pytest.mark.parametrize(
    ("kind", "num_api_processes", "expected"),
    [
        ("lru", 1, MultiModalProcessorSenderCache),
        ("lru", 2, MultiModalProcessorOnlyCache),
        ("processor_only", 1, MultiModalProcessorOnlyCache),
    ],
)
def test_without_a_ring(kind: Literal["lru", "processor_only"], num_api_processes: int, expected: type) -> None:
    config = ServiceConfig(mm_processor_cache_type=kind, _api_process_count=num_api_processes)
    assert type(processor_cache_from_config(config, None)) is expected


def test_processor_only_whatever_the_type() -> None:
    for kind in get_args(Literal["shm", "lru", "processor_only"]):
        cache = processor_only_cache_from_config(ServiceConfig(mm_processor_cache_type=kind))
        assert type(cache) is MultiModalProcessorOnlyCache
    assert processor_only_cache_from_config(ServiceConfig(mm_processor_cache_gb=0)) is None


def test_no_ring_no_cache() -> None:
    assert processor_cache_from_config(ServiceConfig(mm_processor_cache_gb=SMALL), None) is None


def test_the_grant_is_passed_on(store: ObjectStoreWriter) -> None:
    config = ServiceConfig(mm_processor_cache_gb=SMALL, mm_shm_inline_max_kb=0)
    with ReaderRow.attach(store.ring.announcement) as row:
        assert store.ring.attach(row.row, row.nonce)
        for grant, num_leases in ((None, 1), (lambda handle: {}, 0)):
            cache = processor_cache_from_config(config, store, grant=grant)
            assert cache is not None
            with cache:
                item, _ = cache.get_and_update_item(an_item(1), "1")
                assert isinstance(item, ShmItem)
                assert len(item.leases) == num_leases


def test_callers_of_the_published_functions_may_pass_a_registry() -> None:
    config = ServiceConfig(mm_processor_cache_type="lru")
    assert processor_cache_from_config(config, None, mm_registry=object()) is not None
    assert processor_only_cache_from_config(config, object()) is not None
    assert engine_receiver_cache_from_config(config, object()) is not None
    assert worker_receiver_cache_from_config(config, None, mm_registry=object()) is None
