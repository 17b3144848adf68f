"""The KV cache manager and its plain model, led through the same random histories, agree after every action.

The model knows content as written-out prefixes, the product as digests, so agreement also says that digests are equal
exactly where prefixes are. What is compared stands in `pair`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.kv.dice import NUMBERS
from tests.engine.kv.pair import ACTIONS, Pair, Setting
from tests.house.drawing import examples
from tests.models.kv_model import Group

EVERYWHERE = [
    *ACTIONS,
    *("hit", "refused", "ValueError for slots", "LocalProtocolError for slots", "evicted", "duplicates"),
    *("preempted within its step", "freed in flight", "fenced", "not its turn", "was reset"),
    *("took over what is only reserved", "freed with others", "lost", "new epoch with holders"),
    *("guesses", "delivered from outside", "cut at the longest sequence"),
]
WITH_WINDOWS = ["window moved on", "hit with null blocks", "moved on and lost"]
BLOCK_SIZES = [(2, 2, 2, 2), (3, 3, 3, 3), (4, 2, 4, 2), (2, 4, 8, 4), (2, 3, 6, 1)]

KINDS: list[Callable[[int, int], Group]] = [
    lambda size, reach: Group(size),
    lambda size, reach: Group(size, window=reach),
    lambda size, reach: Group(size, chunk=reach),
    lambda size, reach: Group(size, state="align"),
    lambda size, reach: Group(size, state="all"),
]
GROUPS = st.tuples(
    st.sampled_from([*BLOCK_SIZES, (1, 1, 1, 1), (4, 4, 4, 4)]),
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 13)), min_size=1, max_size=4),
).map(lambda drawn: tuple(make(size, reach) for size, (make, reach) in zip(drawn[0], drawn[1], strict=False)))
SETTINGS = st.builds(
    Setting,
    st.integers(1, 24),
    GROUPS,
    st.booleans() | st.just(True),
    st.booleans(),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([1000, 20]),
)
HISTORIES = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, NUMBERS - 1)), min_size=30, max_size=60)


@pytest.mark.timeout(280)  # a failure is first made small, which takes minutes
@settings(max_examples=examples(150))
@given(SETTINGS, HISTORIES)
def test_equal_after_any_history(setting: Setting, history: list[tuple[str, int]]) -> None:
    pair = Pair(setting)
    for action, number in history:
        pair.do(action, number)


def random_setting(rng: random.Random, num_groups: int) -> Setting:
    """Return pools that are fuller than short histories reach, but not so full that nothing is ever admitted."""
    sizes = rng.choice(BLOCK_SIZES)[:num_groups]
    groups = tuple(rng.choice(KINDS)(size, rng.randint(1, 13)) for size in sizes)
    num_tokens = rng.randint(20, 90)
    num_blocks = 2 + sum(-(-num_tokens // group.block_size) for group in groups)
    num_lookahead = rng.choice([0, 0, 1, 2])
    return Setting(
        num_blocks, groups, True, not num_lookahead and rng.random() < 0.4, num_lookahead, rng.choice([28, 1000])
    )


def lead(seed: int, num_groups: int, num_pairs: int, num_actions: int) -> Counter[str]:
    """Lead so many pairs through so many actions each; return how often what happened."""
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    for _ in range(num_pairs):
        pair = Pair(random_setting(rng, num_groups))
        for _ in range(num_actions):
            pair.do(rng.choice(ACTIONS), rng.randrange(NUMBERS))
        seen += pair.seen
    return seen


@pytest.mark.parametrize("num_groups", [1, 2, 3, 4])
def test_long_histories_reach_everything(num_groups: int) -> None:
    """The same by plain chance, and a count of what the histories went through."""
    seen = lead(21, num_groups, 10, 800)
    assert {what: seen[what] for what in {*EVERYWHERE, *WITH_WINDOWS} if seen[what] < 3} == {}


@pytest.mark.soak
@pytest.mark.parametrize("num_groups", [1, 2, 3, 4])
def test_equal_for_minutes(num_groups: int, draw_seeds: Callable[[int], range]) -> None:
    seen = lead(draw_seeds(1)[0], num_groups, 150, 1000)
    assert seen["hit"] > 5_000
