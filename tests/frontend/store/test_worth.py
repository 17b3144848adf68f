"""A record that cost much for its bytes stays where one that cost little goes; without costs nothing changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mmcached.cli.traces.readers import read_uses
from mmcached.cli.traces.simulation import play, point
from mmcached.frontend.store.worth import MAX_WORTH, Worth
from mmcached.shm.ring.allocator import RingAllocator
from tests.house import REPOSITORY

TRACE = read_uses(REPOSITORY / "examples" / "composed_trace.jsonl")


def test_worth_is_the_logarithm_beside_the_usual_cost_per_byte() -> None:
    worth = Worth()
    assert [worth.count_put(1.0, 1000) for _ in range(3)] == [0, 0, 0]
    found = [worth.count_put(cost, 1000) for cost in (0.001, 0.0, 1.0, 2.0, 4.0, 1e9)]
    assert found == [0, 0, 0, 1, 2, MAX_WORTH]
    assert worth.of(1.0, 0) == 0
    assert worth.of(4.0, 4000) == 0, "per byte"


def test_a_copy_of_a_record_does_not_change_the_usual_cost() -> None:
    worth = Worth()
    assert worth.of(64.0, 1000) == 0, "nothing is usual yet"
    worth.count_put(1.0, 1000)
    assert [worth.of(64.0, 1000) for _ in range(10_000)] == [6] * 10_000


def test_a_worthy_chunk_outlives_chunks_with_as_many_hits() -> None:
    ring = RingAllocator(capacity=1000, num_slots=64)

    def place() -> list[int]:
        plan = ring.plan(100, lambda slot: False)
        assert plan is not None
        ring.apply(plan)
        ring.prove(plan.extent.slot)  # else newcomers alone go
        return [victim.slot for victim in plan.victims]

    for _ in range(10):
        place()
    ring.value(3, 4)
    ring.value(5, 0)
    for slot in (3, 5):
        ring.hit(slot)
    gone: list[int] = []
    while 3 not in gone:
        gone += place()
        assert len(gone) < 1000, "it goes at last"
    assert gone.count(5) >= 1
    assert gone.index(5) < gone.index(3)


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_costs_that_differ_save_seconds(share: float) -> None:
    store_bytes = int(share * TRACE.sizes.sum() * 5 / 3)
    unknown = play(replace(TRACE, costs_s=np.zeros(len(TRACE.sizes))), store_bytes)
    saved = [point(TRACE, store_bytes, found).saved for found in (play(TRACE, store_bytes), unknown)]
    assert saved[0] > 1.1 * saved[1]


def test_costs_in_proportion_to_bytes_change_nothing() -> None:
    store_bytes = int(0.2 * TRACE.sizes.sum())
    known, unknown = (replace(TRACE, costs_s=TRACE.sizes.astype(np.float64) * each) for each in (1e-9, 0.0))
    assert np.array_equal(play(known, store_bytes), play(unknown, store_bytes))
