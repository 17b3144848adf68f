"""The manager's holders, statistics and the check of its books; its methods are compared in `test_differential`."""

from __future__ import annotations

from mmcached.wire.engine_stats import KVCacheStats
from tests.engine.builders import generate
from tests.engine.kv.builders import admit, manager_of, with_tail


def test_holders_are_those_with_blocks() -> None:
    manager = manager_of(11)
    requests = [generate(i, 20) for i in range(3)]
    for request in requests:
        admit(manager, request)
    manager.free(requests[1])
    assert manager.holders() == {0, 2}
    assert manager.allocate_slots(generate(3, 160), 160) is None
    manager.holders().clear()
    assert manager.holders() == {0, 2}


def test_stats_count_first_admissions_of_those_who_read() -> None:
    manager = manager_of(11)
    request = with_tail(0, 7)
    admit(manager, request)
    manager.free(request)
    request.was_admitted = True
    request.num_computed_tokens = 0
    admit(manager, request)
    admit(manager, with_tail(1, 7, skip_reading_prefix_cache=True))
    manager.free(request)
    admit(manager, with_tail(2, 5))
    assert manager.stats() == KVCacheStats(queries=108, hits=48, blocks_used=8, blocks_cached=6, blocks_total=10)
