"""The replay of a trace: what is read, what is ideal, and the script itself on a trace made for the test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from scripts.studies.replay import belady
from scripts.studies.traces import BLOCK_TOKENS, Prompt
from tests.house import REPOSITORY


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


# ---- the manager


# ---- the script


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.studies.replay", *arguments]
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
