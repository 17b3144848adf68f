"""Exact LRU against a plain list, its bounded memory included."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.engine.kv.pool import eviction
from mmcached.engine.kv.pool.eviction import LruOrder

TOLERATED_WASTE = 4


@pytest.fixture
def tidy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the order drop what it needs no longer much earlier than in service."""
    monkeypatch.setattr(eviction, "_TOLERATED_WASTE", TOLERATED_WASTE)


def test_the_caller_keeps_its_lists() -> None:
    order = LruOrder()
    block_ids = [1, 2]
    order.add(block_ids)
    block_ids.append(3)
    taken = order.take_blocks(1)
    taken.append(4)
    order.order().append(5)
    assert order.order() == [2]


@given(seed=st.integers(0, 1 << 32), num_blocks=st.integers(1, 12), num_steps=st.integers(1, 120))
@pytest.mark.usefixtures("tidy")
def test_as_a_list_does_it(seed: int, num_blocks: int, num_steps: int) -> None:
    rng = Random(seed)
    order, model, outside = LruOrder(), list[int](), list(range(1, num_blocks + 1))
    for _ in range(num_steps):
        chosen = rng.sample(outside, rng.randint(0, len(outside)))
        kept = rng.sample(model, rng.randint(0, len(model)))
        match rng.randrange(6):
            case 0 | 1 if chosen:
                order.add(chosen)
                model += chosen
            case 2 | 3 if kept:
                order.remove(kept)
                model = [block_id for block_id in model if block_id not in kept]
            case 4 if model:
                number = rng.randint(1, len(model))
                assert order.take_blocks(number) == model[:number]
                del model[:number]
            case 5 if rng.randrange(20) == 0:
                order.clear()
                model = []
        outside = [block_id for block_id in range(1, num_blocks + 1) if block_id not in model]
        assert (order.order(), len(order)) == (model, len(model))


@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("num_at_once", [1, 3, 8])
def test_memory_is_bounded_and_tidying_costs_no_more_than_what_made_it_necessary(num_at_once: int) -> None:
    order = LruOrder()
    order.add(range(100))
    num_wasted = num_moved = 0
    for start in range(10_000):
        entries = order._entries
        if start < 5_000:  # hits without an eviction, then evictions without a hit
            block_ids = [(start * num_at_once + index) % 100 for index in range(num_at_once)]
            order.remove(block_ids)
        else:
            block_ids = order.take_blocks(num_at_once)
        num_wasted += num_at_once
        if order._entries is not entries:
            num_moved += len(order._entries)
        order.add(block_ids)
        assert len(order._entries) <= 2 * 100 + TOLERATED_WASTE + num_at_once
        assert order._num_stale == sum(order._stale.values()) <= 100 + TOLERATED_WASTE
        assert num_moved <= num_wasted
    assert num_moved > 0
    assert sorted(order.order()) == list(range(100))
