"""The proof line can fail: one wrong bit anywhere is found and named."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from mmcached.cli.demo.report import differences, proof_line
from mmcached.cli.demo.workload import Outcome
from mmcached.client import Generation, RowRange


def generation(tokens: list[int], num_prompt_tokens: int, hidden: torch.Tensor) -> Generation:
    rows = RowRange("hidden_states", 0, hidden)
    return Generation(tokens, "length", num_prompt_tokens, 0, {rows.key: rows})


def outcome() -> Outcome:
    hidden = torch.arange(12, dtype=torch.int32).reshape(6, 2)
    return Outcome(
        generations=[generation([1, 2, 3], 4, hidden), generation([5], 6, hidden + 1)],
        embeddings=[torch.ones(2, 2, dtype=torch.int32)],
    )


def test_equal_outcomes_are_bit_identical() -> None:
    assert differences(outcome(), outcome()) == []
    line = proof_line(outcome(), [])
    assert "bit-identical" in line
    assert "4 tokens of 2 answers, 1 embeddings, 12 rows" in line


def test_cached_counts_may_differ() -> None:
    other = outcome()
    other.generations[0] = dataclasses.replace(other.generations[0], num_cached_tokens=3)
    assert differences(outcome(), other) == []


@pytest.mark.parametrize("what", ["token", "hidden bit", "hidden missing", "embedding", "answer missing"])
def test_every_difference_is_found_and_never_called_identical(what: str) -> None:
    other = outcome()
    first = other.generations[0]
    assert first.hidden_states is not None
    if what == "token":
        other.generations[0] = dataclasses.replace(first, tokens=[1, 2, 4])
    elif what == "hidden bit":
        first.hidden_states[5, 1] ^= 1
    elif what == "hidden missing":
        other.generations[0] = dataclasses.replace(first, rows={})
    elif what == "embedding":
        other.embeddings[0][0, 0] = 7
    else:
        other.generations.pop()
    found = differences(outcome(), other)
    assert found
    assert "bit-identical" not in proof_line(outcome(), found)
