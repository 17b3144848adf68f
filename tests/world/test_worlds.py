"""Cached equals uncached, bit for bit, and the books never lie: in hundreds of small worlds, and thousands in the soak.

What a world checks in every step, `audit` says; what it checks of every answer, `clients`. Here is only asked for
enough of them, and that what they are about does happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from mmcached.engine.scheduling.block_admission import BlockAdmission
from tests.world.knobs import knobs_of
from tests.world.mutants import SEEDS
from tests.world.world import play

WORLDS: dict[bool, Sequence[Sequence[int]]] = {
    False: (range(14), range(14, 28), range(28, 42), SEEDS),
    True: (range(14), range(70, 84), range(98, 112)),
}
"""Seeds, without a store and with one, the mutants' among them; all that is asked for below happens in so many."""
HAPPEN_IN_EACH = (
    "finished",
    "preemptions",
    "KV hits",
    "same-step hits",
    "same-step hits that want rows",
    "clamped hits",
    "answers from the store",
    "answers with rows",
    "streamed rows",
    "rows looked at",
    "rows missing",
    "row evictions",
    "rows without room",
    "copies",
    "copies waited for",
    "encoder hits",
    "encoder evictions",
    "encoder keys freed",
    "emitted",
    "withdrawn steps",
    "withdrawn for one rank",
    "killed in a step",
    "resets",
    "resets in flight",
    "epochs",
    "epochs in flight",
    "of two epochs",
    "aborts",
    "aborts in flight",
    "refused",
    "died of poison",
    "poisonous",
)
HAPPEN_WITH_A_STORE = (
    "loads",
    "outputs of another rank",
    "outputs of another engine",
    "outputs of a former epoch",
    "evictions",
    "gone before the lease",
    "gone before the load",
    "gone after a flush",
    "sent again",
    "lost in part",
    "away",
    "no room",
)


def play_all(seeds: Sequence[int], *, has_store: bool = False) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen += play(replace(knobs_of(seed), has_store=has_store))
    return seen


seen_in = cache(play_all)


@pytest.mark.parametrize(
    ("has_store", "part"), [(has_store, i) for has_store, parts in WORLDS.items() for i in range(len(parts))]
)
def test_all_is_as_if_nothing_were_cached_and_the_books_never_lie(has_store: bool, part: int) -> None:
    assert seen_in(WORLDS[has_store][part], has_store=has_store)["finished"]


@pytest.mark.parametrize("has_store", [False, True])
def test_what_the_worlds_are_about_happens(has_store: bool) -> None:
    seen = sum((seen_in(seeds, has_store=has_store) for seeds in WORLDS[has_store]), Counter[str]())
    wanted = HAPPEN_IN_EACH + HAPPEN_WITH_A_STORE * has_store
    lacking = [what for what in wanted if not seen[what]]
    assert not lacking, f"these worlds show nothing about {lacking}: {seen}"


@pytest.mark.parametrize("admits_all", [False, True])
def test_where_blocks_are_scarce_preemption_puts_right_who_was_admitted(
    admits_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if admits_all:
        monkeypatch.setattr(BlockAdmission, "is_room_for", lambda *_: True)
    seen: Counter[str] = Counter()
    for seed in range(8):
        seen += play(
            replace(knobs_of(seed), spare_blocks=0, watermark=0.0, max_num_seqs=8, p_arrival=0.95, num_requests=14)
        )
    assert seen["preemptions"] > 9


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("batch", range(8))
def test_thousands_of_worlds(batch: int, draw_seeds: Callable[[int], range]) -> None:
    play_all(draw_seeds(4000)[500 * batch : 500 * (batch + 1)], has_store=batch % 2 == 1)
