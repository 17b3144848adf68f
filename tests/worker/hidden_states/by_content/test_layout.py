"""Runs: indexes of rows against one position at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mmcached.worker.hidden_states.by_content.layout import Runs

RUNS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), max_size=6)


@given(st.integers(1, 5), RUNS)
def test_each_row_lies_where_its_position_says(block_size: int, runs: list[tuple[int, int]]) -> None:
    starts, counts = (np.array([run[which] for run in runs], dtype=np.int64) for which in (0, 1))
    laid_out = Runs(block_size, starts, counts, int(counts.sum()))
    slots: list[int] = []
    expected: list[int] = []
    for start, count in runs:
        blocks = sorted({position // block_size for position in range(start, start + count)})
        slot_of = {block: (block * 7 + len(slots)) % 50 - 1 for block in blocks}
        slots += slot_of.values()
        positions = range(start, start + count)
        expected += [slot_of[at // block_size] * block_size + at % block_size for at in positions]
    assert laid_out.num_blocks.sum() == len(slots)
    assert laid_out.indexes(np.array(slots, dtype=np.int64)).tolist() == expected
