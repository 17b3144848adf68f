"""The functions that make caches, where `tests/pairs/test_ends_fit.py` does not look."""

from __future__ import annotations

from typing import Literal, get_args

from mmcached.engine import engine_receiver_cache_from_config
from mmcached.frontend import (
    MultiModalProcessorOnlyCache,
    processor_cache_from_config,
    processor_only_cache_from_config,
)
from mmcached.wire.config import ServiceConfig
from mmcached.worker import worker_receiver_cache_from_config


def test_processor_only_whatever_the_type() -> None:
    for kind in get_args(Literal["shm", "lru", "processor_only"]):
        cache = processor_only_cache_from_config(ServiceConfig(mm_processor_cache_type=kind))
        assert type(cache) is MultiModalProcessorOnlyCache
    assert processor_only_cache_from_config(ServiceConfig(mm_processor_cache_gb=0)) is None


def test_no_ring_no_cache() -> None:
    assert processor_cache_from_config(ServiceConfig(), None) is None


def test_callers_of_the_published_functions_may_pass_a_registry() -> None:
    config = ServiceConfig(mm_processor_cache_type="lru")
    assert processor_cache_from_config(config, None, mm_registry=object()) is not None
    assert processor_only_cache_from_config(config, object()) is not None
    assert engine_receiver_cache_from_config(config, object()) is not None
    assert worker_receiver_cache_from_config(config, None, mm_registry=object()) is None
