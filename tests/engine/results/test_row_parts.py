"""Rows that come inline and rows that are named stand in order, and none is missing."""

from __future__ import annotations

import pytest

from mmcached.engine.results.row_parts import RowParts
from mmcached.wire.errors import MissingRows
from mmcached.wire.messages.parts import Rows, SavedRows, Tensor


def inline(first: int, values: bytes) -> tuple[Rows, list[bytes]]:
    return Rows("k", first, Tensor(0, "int8", (len(values), 1))), [values]


def saved(first: int, end: int) -> SavedRows:
    return SavedRows("k", first, f"rows/{first}", "int8", (end - first, 1))


def test_named_rows_part_the_runs_of_the_others() -> None:
    parts = RowParts("k", 2)
    parts.put_saved(saved(2, 10))
    parts.put(*inline(10, b"ab"))
    parts.put(*inline(12, b"c"))
    parts.put_saved(saved(13, 20))
    parts.put(*inline(20, b"d"))
    assert [(run.first, bytes(run.data())) for run in parts.runs()] == [(10, b"abc"), (20, b"d")]
    assert parts.saved == [saved(2, 10), saved(13, 20)]
    assert parts.end == 21


def test_what_was_here_before_is_left_out() -> None:
    parts = RowParts("k", 0)
    parts.put(*inline(0, b"abcd"))
    parts.put_saved(saved(1, 4))
    assert parts.saved == []
    parts.put_saved(saved(2, 8))
    parts.put(*inline(7, b"hi"))
    assert [(run.first, bytes(run.data())) for run in parts.runs()] == [(0, b"abcd"), (8, b"i")]
    assert parts.saved == [saved(2, 8)], "whoever reads it leaves out what overlaps"


def test_a_gap_is_an_error() -> None:
    parts = RowParts("k", 0)
    with pytest.raises(MissingRows):
        parts.put_saved(saved(1, 2))
    parts.put_saved(saved(0, 2))
    with pytest.raises(MissingRows):
        parts.put(*inline(3, b"x"))


def test_nothing_at_all_is_one_empty_run() -> None:
    assert [len(run) for run in RowParts("k", 3).runs()] == [0]
