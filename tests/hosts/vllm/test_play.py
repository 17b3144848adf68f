"""Whatever two engines that share a store have gone through, each says what an engine without the connector says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from tests.hosts.vllm.conftest import MakeCheckpoint
from tests.hosts.vllm.play import FLAGS, Play


def test_play(checkpoint: MakeCheckpoint, store: ChildService, tmp_path: Path) -> None:
    with Play(checkpoint("qwen2_5_vl"), store.run_dir, tmp_path, ["usual"], seed=1) as play:
        play.run(40)
    assert play.counts["encoded"] < play.counts["items"], "nothing was found"
    assert play.counts["compared"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("flags", [["usual"], ["packed"], [name for name in FLAGS if name != "packed"]], ids=str)
def test_long_play(
    checkpoint: MakeCheckpoint,
    store: ChildService,
    tmp_path: Path,
    flags: list[str],
    draw_seeds: Callable[[int], range],
) -> None:
    with Play(checkpoint("qwen2_5_vl"), store.run_dir, tmp_path, flags, seed=draw_seeds(1)[0]) as play:
        play.run(200 if len(flags) == 1 else 80)
    assert play.counts["encoded"] < play.counts["items"], "nothing was found"
