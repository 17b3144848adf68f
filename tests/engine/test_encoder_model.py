"""Both encoder cache managers and their naive model agree after every action; workers hold what is listed."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.engine import make_encoder_cache_manager
from mmcached.engine.encoder.encoder_budget import EncoderCacheScope
from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from tests.engine.encoder_pair import ACTIONS, CACHE_SIZE, NUMBERS, Pair
from tests.house.drawing import examples

SCOPES: tuple[EncoderCacheScope, ...] = ("shared", "request")
EVERYWHERE = [
    *("refused", "freed without being held", "given up in its step", "freed in flight", "told again"),
    *("old one goes on", "old one ended", "withdrawn, and old", "new epoch with holders", "reset"),
]
WHERE_SHARED = [
    *("hit", "hit on what is not encoded yet", "evicted", "repeat", "other size", "there again before told"),
    *("given up in its step, others go on", "withdrawn with others", "beside its old self"),
    "new epoch with idle entries",
]
HISTORIES = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, NUMBERS - 1)), min_size=20, max_size=60)


@pytest.mark.timeout(280)  # a failure is first made small, which takes minutes
@settings(max_examples=examples(120))
@given(st.sampled_from(SCOPES), HISTORIES)
def test_equal_after_any_history(scope: EncoderCacheScope, history: list[tuple[str, int]]) -> None:
    pair = Pair(scope, make_encoder_cache_manager(scope, CACHE_SIZE))
    for action, number in history:
        pair.do(action, number)
    pair.finish()


def lead(scope: EncoderCacheScope, book: EncoderCacheTable, seed: int, num_actions: int) -> Counter[str]:
    """Lead a pair through a random history; return how often what happened."""
    rng = random.Random(seed)
    pair = Pair(scope, book)
    for _ in range(num_actions):
        pair.do(rng.choice(ACTIONS), rng.randrange(NUMBERS))
    pair.finish()
    return pair.seen


@pytest.mark.parametrize("scope", SCOPES)
def test_long_histories_reach_everything(scope: EncoderCacheScope) -> None:
    seen = lead(scope, make_encoder_cache_manager(scope, CACHE_SIZE), seed=1, num_actions=2_500)
    expected = [*ACTIONS, *EVERYWHERE, *(WHERE_SHARED if scope == "shared" else [])]
    assert [situation for situation in expected if not seen[situation]] == []
