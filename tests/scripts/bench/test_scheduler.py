"""What the benchmark of the scheduler's books plays is what it says it plays."""

from __future__ import annotations

import pytest

from mmcached.engine import SharedEncoderCacheManager
from scripts.bench import scheduler
from scripts.bench.sides import Ours
from tests.engine.integrity import check_encoder


class Watched(Ours):
    """Keeps the managers that it has made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[SharedEncoderCacheManager] = []

    def encoder_manager(self, cache_size: int) -> SharedEncoderCacheManager:
        self.made.append(super().encoder_manager(cache_size))
        return self.made[-1]


@pytest.mark.parametrize("in_steps", [False, True])
@pytest.mark.parametrize(("path", "is_hit"), [("encoder_miss", False), ("encoder_hit", True)])
def test_every_item_of_a_sample_is_a_miss_that_evicts_or_a_hit(path: str, *, is_hit: bool, in_steps: bool) -> None:
    side, played = Watched(), scheduler.PATHS[path]
    sample = (played.in_steps if in_steps else played.sampler)(side, 50)
    (manager,) = side.made
    before = manager.stats()
    assert sample() > 0
    after = manager.stats()
    assert after.queries - before.queries == scheduler.NUM_ITEMS
    assert after.hits - before.hits == (scheduler.NUM_ITEMS if is_hit else 0)
    assert after.evictions - before.evictions == (0 if is_hit else scheduler.NUM_ITEMS)
    assert len(manager.freeable) == 50
    assert len(manager.lingering_keys()) <= 1, "nobody tells what was evicted"
    check_encoder(manager)


def test_every_bound_is_about_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "NUM_ENTRIES", 50)
    monkeypatch.setattr(scheduler, "CACHE_SIZES", (10, 50))
    rows = [row for path in scheduler.PATHS.values() for row in scheduler.measure(path, Ours(), 1)]
    rows += scheduler.limit_rows(1)
    assert all(any(bound.concerns(row) for row in rows) for bound in scheduler.BOUNDS)
    assert len(scheduler.growth(1)) == 2
