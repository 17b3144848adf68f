"""The measures of the house can be taken."""

from __future__ import annotations

import pytest

from scripts import house


@pytest.mark.soak  # it reads all files: seconds
def test_every_measure_has_a_value() -> None:
    rows = list(house.measure())
    assert len({row.what for row in rows}) == len(rows) > 10
    assert all(row.value >= 0 for row in rows)
