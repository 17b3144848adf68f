"""Six seconds of what `make chaos` does for a minute, and the proof that such a run sees a missing rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.verification.chaos import run
from scripts.verification.chaos_players import MUTANTS


@pytest.mark.slow
def test_no_read_is_corrupt_and_nothing_is_left_whoever_is_killed_when(run_dir: Path) -> None:
    report = run(6, seed=20, run_dir=run_dir)
    assert report.violations() == []
    assert report.reader_kills > 10
    assert report.writer_kills > 1
    assert report.stops > 1
    assert report.leases_verified > 1000


@pytest.mark.slow
def test_an_allocator_that_ignores_leases_is_found(run_dir: Path) -> None:
    assert run(1.5, seed=21, run_dir=run_dir, mutant="allocator-ignores-leases").corrupt_reads > 0


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_missing_rule_is_found(mutant: str, run_dir: Path) -> None:
    assert run(10, seed=22, run_dir=run_dir, mutant=mutant).corrupt_reads > 0
