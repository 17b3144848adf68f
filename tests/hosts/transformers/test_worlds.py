"""Random worlds of `tests.world` with a tiny checkpoint: cached equals uncached, bit for bit, in floating point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from mmcached.engine.scheduling.alignment import Alignment
from tests.hosts.transformers.plain_checkpoint import with_checkpoint, write_tiny
from tests.world.knobs import knobs_of
from tests.world.world import play

pytestmark = pytest.mark.usefixtures("one_thread")

HIDDEN_SIZE = 8
SEEDS = range(28)
HAPPEN = (
    "finished",
    "preemptions",
    "KV hits",
    "clamped hits",
    "answers from the store",
    "streamed rows",
    "encoder hits",
    "withdrawn steps",
    "killed in a step",
    "resets",
    "epochs",
    "aborts",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a checkpoint for each number of layers."""
    for num_layers in (1, 2):
        write_tiny(tmp_path / str(num_layers), num_layers=num_layers, hidden_size=HIDDEN_SIZE)
    return tmp_path


def play_all(seeds: Iterable[int], folder: Path) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        knobs = knobs_of(seed)
        seen += play(knobs, with_checkpoint(knobs, folder))
    return seen


def test_all_is_as_if_nothing_were_cached(folder: Path) -> None:
    seen = play_all(SEEDS, folder)
    lacking = [what for what in HAPPEN if not seen[what]]
    assert not lacking, f"these worlds show nothing about {lacking}: {seen}"


@pytest.mark.parametrize(
    ("rule", "without", "seed"),
    [("usable", lambda *arguments: arguments[-1], 31), ("limit_sharing", lambda *arguments: None, 23)],
)
def test_a_world_notices_that_a_rule_of_the_alignment_is_missing(
    rule: str, without: Callable[..., int | None], seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Alignment, rule, without)
    with pytest.raises(AssertionError, match="hidden_states"):
        play_all([seed], folder)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_hundreds_of_worlds(folder: Path, draw_seeds: Callable[[int], range]) -> None:
    play_all(draw_seeds(300), folder)
