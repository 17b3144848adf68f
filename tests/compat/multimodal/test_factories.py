"""The functions that make caches. Whatever is configured, both ends come out of it alike: each asks its own factory,
and they never speak of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

import pytest

from mmcached.cache.kinds import ProcessorCacheKind, processor_cache_kind
from mmcached.engine import MultiModalReceiverCache, engine_receiver_cache_from_config
from mmcached.frontend import (
    MultiModalProcessorOnlyCache,
    MultiModalProcessorSenderCache,
    ShmObjectStoreSenderCache,
    processor_cache_from_config,
    processor_only_cache_from_config,
)
from mmcached.shm import ObjectStoreWriter, RingWriter
from mmcached.wire.config import GIB, ServiceConfig
from mmcached.worker import ShmObjectStoreReceiverCache, worker_receiver_cache_from_config

ENDS: dict[ProcessorCacheKind, tuple[type, type, type]] = {
    "off": (type(None), type(None), type(None)),
    "processor_only": (MultiModalProcessorOnlyCache, type(None), type(None)),
    "lru": (MultiModalProcessorSenderCache, MultiModalReceiverCache, type(None)),
    "shm": (ShmObjectStoreSenderCache, type(None), ShmObjectStoreReceiverCache),
}
"""Kind -> sender, the engine's receiver, the worker's receiver."""

TYPES: tuple[Literal["lru", "shm", "processor_only"], ...] = ("lru", "shm", "processor_only")

CONFIGS = [
    ServiceConfig(
        mm_processor_cache_type=kind,
        mm_processor_cache_gb=gb,
        is_multimodal_model=is_multimodal,
        _api_process_count=num_api_processes,
        data_parallel_size=num_engines,
        data_parallel_external_lb=has_balancer,
    )
    for kind, gb, is_multimodal, num_api_processes, num_engines, has_balancer in itertools.product(
        TYPES, (0.0, (1 << 20) / GIB), (False, True), (1, 2), (1, 2), (False, True)
    )
]


@pytest.fixture
def store() -> Iterator[ObjectStoreWriter]:
    with ObjectStoreWriter(
        RingWriter.create(data_bytes=1 << 16, num_slots=8, max_readers=1, max_object_bytes=1 << 16)
    ) as store:
        yield store


def test_both_ends_are_of_one_kind(store: ObjectStoreWriter) -> None:
    kinds = []
    for config in CONFIGS:
        kind = processor_cache_kind(config)
        ends = (
            processor_cache_from_config(config, store if config.ring_data_bytes else None),
            engine_receiver_cache_from_config(config),
            worker_receiver_cache_from_config(config, store.ring.announcement),
        )
        assert tuple(map(type, ends)) == ENDS[kind], config
        for end in ends:
            if end is not None:
                end.close()
        alone = processor_only_cache_from_config(config)
        assert type(alone) is (type(None) if kind == "off" else MultiModalProcessorOnlyCache)
        kinds.append(kind)
    assert {kind: kinds.count(kind) for kind in ENDS} == {"off": 72, "processor_only": 8 + 5, "lru": 3, "shm": 8}


def test_no_ring_no_cache() -> None:
    assert processor_cache_from_config(ServiceConfig(), None) is None


def test_callers_of_the_published_functions_may_pass_a_registry() -> None:
    config = ServiceConfig(mm_processor_cache_type="lru")
    assert processor_cache_from_config(config, None, mm_registry=object()) is not None
    assert processor_only_cache_from_config(config, object()) is not None
    assert engine_receiver_cache_from_config(config, object()) is not None
    assert worker_receiver_cache_from_config(config, None, mm_registry=object()) is None
