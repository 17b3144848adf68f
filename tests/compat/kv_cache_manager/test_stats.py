"""Prefix-cache statistics: a request counts once, when it is admitted. Figures of vLLM 0.33's tests (PC21, SC14)."""

from __future__ import annotations

from typing import Any

import pytest

from mmcached.engine import KVCacheManager
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    COMMON,
    admit,
    manager_of,
    num_hit_tokens,
    with_tail,
)


def counts(manager: KVCacheManager) -> tuple[int, ...]:
    """Take the statistics: requests, queries, hits; then the same of those that were preempted before."""
    taken = manager.make_prefix_cache_stats()
    assert taken is not None
    return (
        *(taken.requests, taken.queries, taken.hits),
        *(taken.preempted_requests, taken.preempted_queries, taken.preempted_hits),
    )


def test_stats_are_none_if_not_wanted() -> None:
    manager = manager_of(11)
    assert manager.make_prefix_cache_stats() is None
    request = with_tail(0, 7)
    admit(manager, request)
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.prefix_cache_stats is manager.make_prefix_cache_stats() is None


def test_stats_are_those_since_they_were_last_taken() -> None:
    manager = manager_of(21, log_stats=True)
    admit(manager, with_tail(0, 7))
    admit(manager, with_tail(1, 5))
    assert counts(manager) == (2, 55 + 53, 48, 0, 0, 0)
    assert counts(manager) == (0, 0, 0, 0, 0, 0)
    admit(manager, with_tail(2, 5))
    assert counts(manager) == (1, 53, 48, 0, 0, 0)


def test_a_request_counts_when_it_is_admitted_and_once() -> None:
    manager = manager_of(6, log_stats=True)
    holder, request = generate(0, COMMON), generate(1, COMMON)
    admit(manager, holder)
    other = generate(2, 20)
    admit(manager, other)
    counts(manager)
    for _ in range(3):  # looked up, and no slots asked for
        assert num_hit_tokens(manager, request) == 32
    hit, num_hit = manager.get_computed_blocks(request)
    assert manager.allocate_slots(request, 16, num_hit, hit) is None
    assert counts(manager) == (0, 0, 0, 0, 0, 0)

    manager.free(other)
    admit(manager, request)
    assert counts(manager) == (1, 48, 32, 0, 0, 0)
    request.append_output_token(1)
    manager.allocate_slots(request, 1)
    assert counts(manager) == (0, 0, 0, 0, 0, 0)

    manager.free(request)
    request.num_preemptions += 1
    request.num_computed_tokens = 0
    admit(manager, request)
    assert counts(manager) == (0, 0, 0, 1, 49, 48)


@pytest.mark.parametrize("options", [{"enable_caching": False}, {}], ids=str)
def test_who_may_not_read_is_not_counted(options: dict[str, Any]) -> None:
    manager = manager_of(21, log_stats=True, **options)
    for request_id in range(2):
        admit(manager, with_tail(request_id, 7, skip_reading_prefix_cache=not options))
    assert counts(manager) == (0, 0, 0, 0, 0, 0)


def test_stats_tell_of_a_reset() -> None:
    manager = manager_of(11, log_stats=True)
    request = with_tail(0, 7)
    admit(manager, request)

    def was_reset() -> bool:
        taken = manager.make_prefix_cache_stats()
        assert taken is not None
        return taken.reset

    assert not was_reset()
    assert not manager.reset_prefix_cache()
    assert not was_reset()
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert was_reset()
    assert not was_reset()
