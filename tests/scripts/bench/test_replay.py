"""The replay of a trace: what is read, what is ideal, and the script itself on a trace made for the test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scripts.bench.replay import Replay, belady, ideal_lru, num_counted
from scripts.bench.traces import BLOCK_TOKENS, Prompt, read_trace, with_scans
from tests.house import REPOSITORY

EVERYTHING = 20_000


def chain(*paths: str) -> list[Prompt]:
    """Return full prompts; equal beginnings of paths are equal blocks. The block behind each is its own tail."""
    numbers: dict[str, int] = {}
    return [
        Prompt(
            [numbers.setdefault(path[: end + 1], len(numbers)) for end in range(len(path))] + [1000 + index], len(path)
        )
        for index, path in enumerate(paths)
    ]


def write(path: Path, prompts: Sequence[Prompt]) -> Path:
    lines = (
        {
            "timestamp": 0,
            "input_length": prompt.num_full * BLOCK_TOKENS + (len(prompt.block_ids) - prompt.num_full),
            "output_length": 1,
            "hash_ids": prompt.block_ids,
        }
        for prompt in prompts
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def conversations(num_prompts: int) -> list[Prompt]:
    """Return the turns of ten conversations at a time, each longer than the one before, until a new one begins."""
    rng = Random(0)
    lengths = dict.fromkeys(range(10), 1)
    prompts = []
    for index in range(num_prompts):
        name = rng.randrange(10)
        block_ids = [0, *range(1000 * (name + 1), 1000 * (name + 1) + 3 * lengths[name])]
        prompts.append(Prompt([*block_ids, 10**6 + index], len(block_ids)))
        lengths[name] = lengths[name] % 20 + 1
    return prompts


# ---- what is read


def test_a_tail_that_is_not_full_is_told_from_full_blocks(tmp_path: Path) -> None:
    prompts = [Prompt([0, 1, 2], 2), Prompt([0, 3], 2), Prompt([4], 0)]
    assert read_trace(write(tmp_path / "trace.jsonl", prompts)) == prompts


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "Mooncake"),
        ("[]", "Mooncake"),
        ('{"input_length": 1}', "hash_ids"),
        ('{"input_length": 513, "hash_ids": [0]}', "1 blocks of 512 for 513 tokens"),
        ('{"input_length": 0, "hash_ids": []}', "0 blocks"),
        ('{"input_length": 1000, "hash_ids": [9, 1]}', "block 1 is behind 9 and 0"),
    ],
)
def test_names_the_line_that_is_no_request(tmp_path: Path, line: str, text: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"input_length": 1000, "hash_ids": [0, 1]}\n' + line)
    with pytest.raises(ValueError, match=text) as caught:
        read_trace(path)
    assert f"{path}:2:" in str(caught.value)


def test_scans_share_nothing_and_are_not_counted() -> None:
    prompts = chain("ab", "ac", "ad", "ae")
    mixed = with_scans(prompts, every=2, num_scans=2, num_blocks=3)
    assert [prompt for prompt in mixed if prompt.is_counted] == prompts
    scans = [block_id for prompt in mixed if not prompt.is_counted for block_id in prompt.block_ids]
    assert [prompt.is_counted for prompt in mixed] == [True, True, False, False] * 2
    assert len(set(scans)) == len(scans) == 12
    assert set(scans).isdisjoint(block_id for prompt in prompts for block_id in prompt.block_ids)
    assert num_counted(mixed) == num_counted(prompts) == 12


# ---- what is ideal


def most_that_can_be_found(prompts: Sequence[Prompt], num_blocks: int) -> int:
    """Try everything that a cache of whole prefixes could keep between any two prompts."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for prompt in prompts:
        following: dict[frozenset[int], int] = {}
        for kept, found in best.items():
            num_found = next(i for i, each in enumerate([*prompt.block_ids[:-1], -1]) if each not in kept)
            there = kept | set(prompt.block_ids[: prompt.num_full])
            for choice in combinations(sorted(there), min(num_blocks, len(there))):
                state = frozenset(choice)
                following[state] = max(following.get(state, 0), found + num_found * prompt.is_counted)
        best = following
    return max(best.values())


PATHS = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=7)


@example(["a", "b", "a", "b"], 1, [True, True, False, True])  # nothing is kept for what is not counted
@given(PATHS, st.integers(1, 4), st.lists(st.booleans(), min_size=7, max_size=7))
def test_belady_finds_the_most_that_can_be_found(paths: list[str], num_blocks: int, counted: list[bool]) -> None:
    prompts = [
        prompt if is_counted else Prompt([10**6 + 10 * index + i for i in range(len(prompt.block_ids))], 3, False)
        for index, (prompt, is_counted) in enumerate(zip(chain(*paths), counted, strict=False))
    ]
    assert belady(prompts, num_blocks) == most_that_can_be_found(prompts, num_blocks)


@example(["ax", "by", "a", "bz"], 1)  # as the last block of the third prompt, a would not be found
@example(["b", "aa", "ba", "a", "aaa"], 2)  # the fourth prompt brings a again: until then, it need not be kept
@given(PATHS, st.integers(1, 8))
def test_last_blocks_that_are_full_are_kept_for_longer_prompts_only(paths: list[str], num_blocks: int) -> None:
    prompts = [Prompt(prompt.block_ids[:-1], prompt.num_full) for prompt in chain(*paths)]
    assert belady(prompts, num_blocks) == most_that_can_be_found(prompts, num_blocks)


def test_belady_is_the_optimum_of_every_small_traffic() -> None:
    for paths in product(("a", "aa", "aaa", "b", "ba"), repeat=5):
        prompts = [Prompt(prompt.block_ids[:-1], prompt.num_full) for prompt in chain(*paths)]
        assert belady(prompts, 2) == most_that_can_be_found(prompts, 2), paths


def test_belady_knows_what_lru_does_not() -> None:
    prompts = chain("a", "b", "c", "a", "b", "c")
    assert [belady(prompts, size) for size in (1, 2, 3)] == [1, 2, 3]
    assert [ideal_lru(prompts, size) for size in (1, 2, 3)] == [0, 0, 3]


def test_ideal_lru_gives_up_tails_first() -> None:
    assert ideal_lru(chain("abc", "x", "abc"), 3) == 2


def test_a_block_behind_one_that_is_gone_is_not_found() -> None:
    prompts = [Prompt([0, 1, 2], 2), Prompt([3, 4], 1), Prompt([0, 1, 5], 2)]
    assert ideal_lru(prompts, EVERYTHING) == belady(prompts, EVERYTHING) == 2
    assert ideal_lru(prompts, 2) == 1


# ---- the manager


@given(st.lists(st.text("abc", min_size=1, max_size=4), min_size=5, max_size=30), st.integers(4, 12))
def test_lru_of_the_manager_is_exact_if_nothing_is_held(paths: list[str], num_blocks: int) -> None:
    prompts = chain(*paths)
    num_tail_blocks = 1  # of the one that runs: never published
    found = Replay(prompts).run(num_blocks + num_tail_blocks, num_running=1)
    assert found == ideal_lru(prompts, num_blocks)


@pytest.mark.parametrize("num_running", [1, 4, 1000])
def test_the_manager_finds_at_most_what_belady_does_and_in_the_end_everything(num_running: int) -> None:
    prompts = conversations(300)
    replay = Replay(prompts)
    found = [replay.run(size, num_running=num_running) for size in (70, 200, 400, EVERYTHING)]
    most = [belady(prompts, size) for size in (70, 200, 400, EVERYTHING)]
    assert all(ours <= theirs for ours, theirs in zip(found, most, strict=True))
    assert 0 < found[0] < found[-1] == most[-1] == ideal_lru(prompts, EVERYTHING)


def test_running_requests_leave_less_to_the_cache() -> None:
    prompts = chain(*("ax", "bx", "cx", "dx") * 2)
    replay = Replay(prompts)
    # 8 full blocks, and one tail that is not: with three requests at a time there are three tails.
    assert [replay.run(9, num_running=number) for number in (1, 3)] == [8, 0]


def test_what_is_not_counted_is_played_all_the_same() -> None:
    prompts = chain("ab", "abc", "abc")
    prompts[1] = replace(prompts[1], is_counted=False)
    found = (Replay(prompts).run(99, num_running=1), ideal_lru(prompts, 99), belady(prompts, 99))
    assert found == (3, 3, 3)


def test_a_prompt_larger_than_the_pool_is_turned_away() -> None:
    replay = Replay(chain("ab", "abcdefgh", "ab"))
    assert replay.run(5, num_running=1) == 2


# ---- the script


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.bench.replay", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=90, check=False)


def test_the_script_prints_rows(tmp_path: Path) -> None:
    trace = write(tmp_path / "trace.jsonl", conversations(40))
    done = run(trace, "--json", "--sizes", "300", "100")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {"name", "params", "ours", "unit", "peer", "peer_value", "ratio"} == set(rows[0])
    assert {row["peer"] for row in rows} == {"infinite", "Belady", "ideal LRU"}
    assert all(row["ours"] <= row["peer_value"] + 1e-9 for row in rows if row["peer"] in ("infinite", "Belady"))
    assert {row["params"].split(", ")[0] for row in rows} == {"as recorded", "steady scan", "scan bursts"}
    assert run(trace, "--quick").stdout.count("hit rate in %") == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.jsonl"], "missing.jsonl"),
        (["x", "--sizes", "0"], "at least 1"),
    ],
)
def test_the_script_says_what_it_cannot_do(arguments: list[str], text: str) -> None:
    done = run(*arguments)
    assert (done.returncode, text in done.stderr) == (2, True)
