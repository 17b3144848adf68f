"""Random histories against the plain cache."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mmcached.worker.hidden_states.device_copy import TransferFor, transfer_for
from tests.compat.omni_tensor_prefix_cache.mini_engine import MiniEngine, run
from tests.worker.hidden_states.by_content.delayed_transfer import delayed

NUM_STEPS = 40


def history(seed: int) -> MiniEngine:
    """Play a history; in half of them rows come from a device, late."""
    rng = random.Random(seed)
    late: TransferFor = delayed(lambda: rng.randint(0, 6))
    return run(seed, NUM_STEPS, declares=seed % 4 > 0, transfer_for=late if seed % 2 else transfer_for)


def test_what_is_delivered_is_what_was_written_last_or_is_called_missing() -> None:
    delivered = missed = hits = 0
    for seed in range(90):
        engine = history(seed)
        delivered += engine.delivered
        missed += engine.missed
        hits += engine.cache.stats().row_hits
    assert min(delivered, hits, 20 * missed) > 10_000, "the histories have become poor"


@pytest.mark.soak
def test_thousands_of_histories(draw_seeds: Callable[[int], range]) -> None:
    for seed in draw_seeds(6_000):
        history(seed)
