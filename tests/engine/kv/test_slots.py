"""Blocks that arrive later, and a manager without caching; slots themselves: `test_differential`."""

from __future__ import annotations

import pytest

from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    admit,
    manager_of,
    run,
)

BLOCK = 4


@pytest.mark.parametrize(("num_slots", "num_tokens"), [(0, 4), (4, 8), (8, 12)])
def test_what_has_no_slots_cannot_have_arrived(num_slots: int, num_tokens: int) -> None:
    manager = manager_of(20, BLOCK)
    request = generate(0, 14)
    if num_slots:
        manager.allocate_slots(request, 0, num_external_computed_tokens=num_slots, delay_cache_blocks=True)
    with pytest.raises(LocalProtocolError, match="0"):
        manager.cache_blocks(request, num_tokens)
    assert manager.block_pool.num_published == 0
    manager.check_integrity()


def test_without_caching_nothing_is_published_whoever_asks() -> None:
    manager, request = manager_of(20, BLOCK, enable_caching=False), generate(0, 40)
    manager.cache_blocks(request, 40)
    manager.allocate_slots(request, 4)
    manager.cache_blocks(request, 40)
    assert manager.block_pool.num_published == 0


def test_without_caching_no_token_is_looked_at() -> None:
    manager = manager_of(20, BLOCK, enable_caching=False)
    request = generate(0, [-1] * 8)
    assert admit(manager, request) == ([], [1, 2])
    manager.new_epoch()
    request.token_ids += [-1] * 8
    assert run(manager, request, 8) == [3, 4]
    manager.cache_blocks(request, 16)
    assert request.block_hashes == []
