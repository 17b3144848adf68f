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
    ref_counts,
    tables,
    with_tail,
)
from tests.house.drawing import examples

FULL, TWO, THREE, FOUR = 16, (16, 32), (16, 48), (16, 64)  # windows of so many blocks


SIX_BLOCKS = [i for i in range(6) for _ in range(16)]


def test_one_full_and_two_windows() -> None:
    manager = manager_of(21, FULL, TWO, TWO)
    pool = manager.block_pool
    r0, r1 = with_tail(0, 7), with_tail(1, 5)
    assert admit_to_groups(manager, r0) == (([], [], []), ([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]))
    for index, digest in enumerate(r0.block_hashes):
        keys = [pool.block_key(block_id) for block_id in (1 + index, 5 + index, 9 + index)]
        assert keys == [content_key(digest, group) for group in range(3)]
    assert admit_to_groups(manager, r1) == (([1, 2, 3], [0, 6, 7], [0, 10, 11]), ([13], [14], [15]))
    assert ref_counts(manager, [1, 2, 3, 5, 6, 7, 9, 10, 11]) == [2, 2, 2, 1, 2, 2, 1, 2, 2]
    manager.free(r0)
    manager.free(r1)
    assert pool.free_order() == [15, 14, 13, 12, 8, 4, 16, 17, 18, 19, 20, 5, 9, 3, 2, 1, 7, 6, 11, 10]


def test_one_full_and_two_windows_for_a_drafter() -> None:
    manager = manager_of(31, FULL, THREE, THREE, use_eagle=True)
    admitted = admit_to_groups(manager, generate(0, SIX_BLOCKS + [100] * 7))
    assert admitted[1] == ([*range(1, 8)], [*range(8, 15)], [*range(15, 22)])
    assert admit_to_groups(manager, generate(1, SIX_BLOCKS + [101] * 5)) == (
        ([1, 2, 3, 4, 5], [0, 0, 10, 11, 12], [0, 0, 17, 18, 19]),
        ([22, 23], [24, 25], [26, 27]),
    )


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


MIXES: list[tuple[Spec, ...]] = [
    (FULL, TWO),
    (TWO, FULL),
    (FULL, FOUR),
    (FULL, FULL),
    (TWO, TWO),
    (TWO, FOUR),
    (FULL, FULL, TWO),
    (FULL, TWO, FULL),
    (TWO, FULL, TWO),
    (TWO, FULL, FOUR),
    (FULL, TWO, FOUR),
    (FULL, TWO, FULL, TWO),
    (TWO, FULL, FOUR, FULL),
    (FULL, TWO, TWO, FOUR),
    (TWO, FOUR, TWO, FOUR),
]


@pytest.mark.parametrize("specs", MIXES, ids=str)
@pytest.mark.parametrize("use_eagle", [False, True])
def test_any_mix_in_any_order(specs: tuple[Spec, ...], use_eagle: bool) -> None:
    manager = manager_of(60, *specs, use_eagle=use_eagle)
    first, second = with_tail(0, 7), with_tail(1, 5)
    for num_tokens in (48, 7):
        manager.allocate_slots(first, num_tokens)
        first.num_computed_tokens += num_tokens
        manager.check_integrity()

    hit, new = admit_to_groups(manager, second)
    num_hit, num_new = (2, 2) if use_eagle else (3, 1)
    assert [len(table) for table in hit] == [num_hit] * len(specs)
    assert NULL not in [table[-1] for table in hit]
    assert [len(table) for table in new] == [num_new] * len(specs)
    held = [block_id for request_id in (0, 1) for table in manager.get_block_ids(request_id) for block_id in table]
    assert {*held, *manager.block_pool.free_order(), NULL} == set(range(60))
    manager.free(first)
    manager.free(second)
    assert sorted(manager.block_pool.free_order()) == list(range(1, 60))
    assert num_hit_tokens(manager, second) == 16 * num_hit


def test_blocks_of_different_sizes() -> None:
    manager = manager_of(20, 32, (16, 32))
    assert admit_to_groups(manager, generate(0, range(112)))[1] == ([1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11])
    for num_tokens, expected in ((113, 3), (112, 3), (97, 3), (96, 2), (65, 2), (64, 1), (33, 1), (32, 0)):
        hit, num_hit = manager.get_computed_blocks(generate(1, range(num_tokens)))
        assert num_hit == 32 * expected
        full, window = tables(hit)
        assert full == [1, 2, 3][:expected]
        assert window == [NULL] * (2 * expected - 2) + [4 + 2 * expected - 1, 4 + 2 * expected][: 2 * expected]


@pytest.mark.parametrize(
    ("patterns", "num_hit"),
    [(("TTT", "TTTTTTT"), 96), (("TTT", "TTTTTFF"), 64), (("TTF", "TTTTTTT"), 64), (("TTT", "TFTTFTF"), 64)],
)
def test_a_hit_ends_where_blocks_of_all_sizes_end(patterns: tuple[str, ...], num_hit: int) -> None:
    manager = manager_of(20, 32, (16, 32))
    request = generate(0, 113)
    plant(manager, request, *patterns)
    hit, num_tokens = manager.get_computed_blocks(request)
    assert num_tokens == num_hit
    assert [len(table) for table in tables(hit)] == [num_hit // 32, num_hit // 16]


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


def test_unpublished_blocks_of_every_group_are_handed_out_before_published_ones() -> None:
    manager = manager_of(30, FULL, TWO, FOUR)
    request = with_tail(0, 7)
    admit_to_groups(manager, request)
    manager.free(request)
    pool = manager.block_pool
    is_published = [pool.block_key(block_id) is not None for block_id in pool.free_order()]
    assert is_published == sorted(is_published)
    assert sum(is_published) == 9
    assert num_hit_tokens(manager, with_tail(1, 7)) == 48
