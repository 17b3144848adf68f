"""The table of kinds, with each row that vLLM's factories have."""

from __future__ import annotations

from typing import Any

import pytest

from mmcached.cache.kinds import ProcessorCacheKind, processor_cache_kind
from mmcached.wire.config import ServiceConfig

ROWS: list[tuple[ProcessorCacheKind, dict[str, Any]]] = [
    ("shm", {}),
    ("lru", {"mm_processor_cache_type": "lru"}),
    ("processor_only", {"mm_processor_cache_type": "processor_only"}),
    ("off", {"mm_processor_cache_gb": 0.0}),
    ("off", {"mm_processor_cache_gb": 0.0, "mm_processor_cache_type": "lru"}),
    ("off", {"is_multimodal_model": False, "mm_processor_cache_type": "processor_only"}),
    ("processor_only", {"mm_processor_cache_type": "lru", "_api_process_count": 2}),
    ("processor_only", {"mm_processor_cache_type": "lru", "data_parallel_size": 2}),
    ("lru", {"mm_processor_cache_type": "lru", "data_parallel_size": 2, "data_parallel_external_lb": True}),
    ("lru", {"mm_processor_cache_type": "lru", "data_parallel_external_lb": True}),
    # Several senders would move one receiver, whoever balances.
    (
        "processor_only",
        {"mm_processor_cache_type": "lru", "data_parallel_external_lb": True, "_api_process_count": 2},
    ),
    ("shm", {"mm_processor_cache_type": "shm", "_api_process_count": 2, "data_parallel_size": 2}),
]


@pytest.mark.parametrize(("kind", "fields"), ROWS)
def test_the_table(kind: ProcessorCacheKind, fields: dict[str, Any]) -> None:
    assert processor_cache_kind(ServiceConfig(**fields)) == kind
