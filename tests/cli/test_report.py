"""The proof line can fail: one wrong bit anywhere is found and named."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from mmcached.cli.demo.report import StageFigures, differences, encoded_line, proof_line
from mmcached.cli.demo.workload import Outcome
from mmcached.client import Generation, RowRange
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import EncodedByModality, EncodedOfModality, EngineStats, WorkerStats
from mmcached.wire.stats import ServiceStats


def generation(tokens: list[int], num_prompt_tokens: int, hidden: torch.Tensor) -> Generation:
    rows = RowRange("hidden_states", 0, hidden)
    return Generation(tokens, "length", num_prompt_tokens, 0, {rows.key: rows})


def outcome() -> Outcome:
    hidden = torch.arange(12, dtype=torch.int32).reshape(6, 2)
    return Outcome(
        generations=[generation([1, 2, 3], 4, hidden), generation([5], 6, hidden + 1)],
        embeddings=[torch.ones(2, 2, dtype=torch.int32)],
        num_slices=0,
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


def figures(*encoded_by_worker: int) -> StageFigures:
    """Return figures of an engine with these workers, which have encoded photographs."""
    workers = [
        WorkerStats(items_encoded=num, items_loaded=1, by_modality=EncodedByModality(image=EncodedOfModality(num)))
        for num in encoded_by_worker
    ]
    none = [WorkerStats() for _ in workers]
    before, after = (ServiceStats(engines=[EngineStats(workers=each)]) for each in (none, workers))
    return StageFigures(before, after)


def test_items_that_were_encoded_again_are_not_called_encoded_once() -> None:
    config, two = ServiceConfig(world_size=1), ServiceConfig(world_size=2)
    once = "encoded once: 3 photographs (3 by engine); read from the store by the other engines: 1"
    assert encoded_line(figures(3), 3, config) == once
    assert encoded_line(figures(4), 3, config).startswith("encoded, 1 of them again: 4 photographs (4 by engine); read")
    assert encoded_line(figures(1, 2), 3, two).startswith("encoded once: 3 photographs")
    quick = encoded_line(figures(3, 3), 3, two)
    assert quick.startswith("encoded, 3 of them again: 6 photographs (6 by engine); each worker encodes by itself")
    assert "2 ms (limits.min_shared_encode_ms)" in quick
