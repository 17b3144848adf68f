"""Three seconds of what `make chaos` does for a minute, and the proof that such a run sees a missing rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.verification.chaos import Report, run
from scripts.verification.chaos_casts import MUTANTS
from scripts.verification.chaos_roles import Count


def assert_all_went_well(report: Report) -> None:
    assert report.violations() == []
    assert report.reader_kills > 8
    assert report.layer_kills > 4
    assert report.writer_kills > 0
    assert report.stops > 0
    assert report.leases_verified > 1000


@pytest.mark.slow
def test_no_read_is_corrupt_and_nothing_is_left_whoever_is_killed_when(run_dir: Path) -> None:
    report = run(5, seed=20, run_dir=run_dir, cast="as it is")
    assert_all_went_well(report)
    assert report.num_rings == 1, "the next frontend adopts it"
    assert report.totals[Count.KEPT] > 0
    assert report.totals[Count.LAID] > 0
    assert report.totals[Count.PROMOTED] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    ["store-ignores-taken-leases", "client-takes-no-lease", "client-gives-back-early"],
)
def test_a_missing_rule_is_found(mutant: str, run_dir: Path) -> None:
    assert run(1.2, seed=21, run_dir=run_dir, cast=mutant).corrupt_reads > 0


@pytest.mark.soak
@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_missing_rule_is_found(mutant: str, run_dir: Path) -> None:
    assert run(20, seed=22, run_dir=run_dir, cast=mutant).corrupt_reads > 0
