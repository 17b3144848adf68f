"""Several groups of layers: the hit that all of them agree on.

Figures of vLLM 0.33's tests (PC2-PC5, PC16, PC40, PC41, PC44, PC64, ST13). What a test there takes out of the cache is
never put in here: `builders.plant` writes down which blocks of which group are cached.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.builders import generate
from tests.engine.kv.builders import (
    NULL,
    Spec,
    admit_to_groups,
    content_key,
    manager_of,
    num_hit_tokens,
    plant,
    tables,
)
from tests.house.drawing import examples

FULL, TWO, THREE, FOUR = 16, (16, 32), (16, 48), (16, 64)  # windows of so many blocks


SIX_BLOCKS = [i for i in range(6) for _ in range(16)]


@pytest.mark.parametrize(
    ("specs", "use_eagle", "patterns", "num_hit_blocks"),
    [
        ((FULL, TWO, TWO), False, ("TTT", "TTT", "TTT"), 3),
        ((FULL, TWO, TWO), False, ("TTT", "FTT", "FTT"), 3),
        ((FULL, TWO, TWO), False, ("FTT", "TTT", "TTT"), 0),
        ((FULL, TWO, TWO), False, ("TTF", "TTF", "TTF"), 2),
        ((FULL, TWO, TWO), False, ("TTF", "TTT", "TTT"), 2),
        ((FULL, TWO, TWO), False, ("TTT", "TTF", "TTT"), 2),
        ((FULL, TWO, TWO), False, ("TTT", "TTT", "TTF"), 2),
        ((FULL, TWO, TWO), False, ("TTF", "FTT", "FTT"), 0),
        ((FULL, THREE, THREE), True, ("TTTTTT", "FTTTTT", "FTTTTT"), 5),
        ((FULL, THREE, THREE), True, ("FTTTTT", "TTTTTT", "TTTTTT"), 0),
        ((FULL, THREE, THREE), True, ("TTTTTF", "TTTTTF", "TTTTTF"), 4),
        ((FULL, THREE, THREE), True, ("TTTTTF", "TTTTTT", "TTTTTT"), 4),
        ((FULL, THREE, THREE), True, ("TTTTTT", "TTTTFT", "TTTTTT"), 3),
        ((FULL, THREE, THREE), True, ("TTTTTT", "TTTTTT", "TTTTFT"), 3),
        ((FULL, THREE, THREE), True, ("TTTTTF", "FTTTTT", "TTTTTT"), 4),
        # Each group's own longest hit is longer than any that they have in common.
        ((FULL, TWO, THREE), False, ("TTTTTT", "TTFTTF", "TTTFTT"), 2),
        ((TWO, FOUR), False, ("FFFFTT", "FTTTTF"), 0),
        ((TWO, FOUR), False, ("TFTTFF", "TTTTTT"), 4),
        (((16, 16),), True, ("TT",), 1),
        (((16, 16),), True, ("FT",), 0),
        # A window of one token looks at nothing before it, but a hit says that something was computed.
        (((16, 1),), False, ("FFF",), 0),
        (((16, 1),), False, ("FTF",), 2),
        (((16, 1),), True, ("FFT",), 2),
        (((16, 1),), True, ("FTF",), 1),
        ((FULL,), True, ("TTF",), 1),
        ((FULL,), True, ("TFT",), 0),
    ],
    ids=str,
)
def test_the_longest_hit_that_every_group_has(
    specs: tuple[Spec, ...], use_eagle: bool, patterns: tuple[str, ...], num_hit_blocks: int
) -> None:
    manager = manager_of(40, *specs, use_eagle=use_eagle)
    request = generate(0, SIX_BLOCKS[: 16 * len(patterns[0])] + [7] * 5)
    planted = plant(manager, request, *patterns)
    hit, num_tokens = manager.get_computed_blocks(request)
    assert num_tokens == num_hit_blocks * 16
    for table, planted_table in zip(tables(hit), planted, strict=True):
        assert len(table) == num_hit_blocks
        assert all(block_id in (NULL, planted_id) for block_id, planted_id in zip(table, planted_table, strict=False))


# ---- mixes


@pytest.mark.parametrize(("num_tokens", "num_hit"), [(200, 160), (97, 64), (65, 32), (40, 0)])
def test_a_drafter_recomputes_a_block_of_the_largest_size(num_tokens: int, num_hit: int) -> None:
    manager = manager_of(40, 32, (8, 8), use_eagle=True)
    admit_to_groups(manager, generate(0, range(200)))
    assert num_hit_tokens(manager, generate(1, range(num_tokens))) == num_hit


def test_a_coarse_block_goes_by_the_last_digest_inside_it() -> None:
    manager = manager_of(20, 2, (4, 4))
    request = generate(0, 9)
    assert admit_to_groups(manager, request)[1] == ([1, 2, 3, 4, 5], [6, 7, 8])
    assert [manager.block_pool.block_key(block_id) for block_id in (1, 2, 3, 4)] == request.block_hashes
    fine = [request.block_hashes[1], request.block_hashes[3]]
    assert [manager.block_pool.block_key(block_id) for block_id in (6, 7)] == [content_key(each, 1) for each in fine]
    assert tables(manager.get_computed_blocks(request)[0]) == ([1, 2, 3, 4], [NULL, 7])


def test_groups_may_have_different_contents() -> None:
    manager = manager_of(20, 4, 4)
    request = generate(0, 14)
    (first, second), pool = plant(manager, request, "TTF", "TTT"), manager.block_pool
    assert pool.num_published == 5
    found = [[pool.find(content_key(digest, group)) for digest in request.block_hashes] for group in (0, 1)]
    assert found == [[*first[:2], None], second]
    assert num_hit_tokens(manager, request) == 8


@st.composite
def caches(draw: st.DrawFn) -> tuple[tuple[Spec, ...], tuple[str, ...], bool]:
    """Groups with blocks of two or four tokens, any windows, and what is cached of 24 tokens."""
    specs = draw(
        st.lists(
            st.sampled_from([2, 4]) | st.tuples(st.sampled_from([2, 4]), st.integers(1, 14)), min_size=1, max_size=3
        )
    )
    patterns = []
    for spec in specs:
        num_blocks = 24 // (spec if isinstance(spec, int) else spec[0])
        patterns.append("".join(draw(st.lists(st.sampled_from("TTTF"), min_size=num_blocks, max_size=num_blocks))))
    return tuple(specs), tuple(patterns), draw(st.booleans())


def can_go_on_behind(num_tokens: int, spec: Spec, pattern: str, use_eagle: bool) -> bool:
    """The definition: whether what the token behind this prefix looks at is cached, and a drafter's one more block.

    A token that looks at itself alone wants to see the one before it all the same.
    """
    block_size, window = (spec, num_tokens + 1) if isinstance(spec, int) else spec
    window = max(window, 1 if use_eagle else 2)
    seen = range(max(0, num_tokens - window + 1), num_tokens + use_eagle * block_size)
    return all(pattern[position // block_size : position // block_size + 1] == "T" for position in seen)


@settings(max_examples=examples(150))
@given(caches())
def test_the_longest_hit_by_its_definition(cache: tuple[tuple[Spec, ...], tuple[str, ...], bool]) -> None:
    specs, patterns, use_eagle = cache
    manager, request = manager_of(60, *specs, use_eagle=use_eagle), generate(0, 25)
    planted = plant(manager, request, *patterns)
    step = math.lcm(*manager.config.block_sizes)
    expected = max(
        num_tokens
        for num_tokens in range(0, 25, step)
        if num_tokens == 0
        or all(can_go_on_behind(num_tokens, *group, use_eagle) for group in zip(specs, patterns, strict=True))
    )
    hit, num_tokens = manager.get_computed_blocks(request)
    assert num_tokens == expected
    for spec, table, planted_table in zip(specs, tables(hit), planted, strict=True):
        block_size, window = (spec, 25) if isinstance(spec, int) else spec
        assert len(table) == expected // block_size
        num_null = max(0, expected - max(window, 1 if use_eagle else 2) + 1) // block_size
        assert table == [NULL] * num_null + planted_table[num_null : len(table)]
