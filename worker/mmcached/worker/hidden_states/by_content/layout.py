"""Maps absolute positions to the row indices of a step's packed rows, or of a read.

    runs       request a: positions 6 7 8 9      request b: position 3          block_size 4
    blocks     ids [5, 2]        offset 2        ids [7]     offset 3
    indexes    22 23 8 9                         31                             block_id * block_size + offset

A block id of -1 gives negative indexes: such a row is not stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Runs:
    """Concatenated runs of positions, as arrays, because a decode step has hundreds of runs of one row.

    Args:
        starts: `(runs,)` int64, first position of each run.
        counts: `(runs,)` int64, rows of each run, at least 1.

    Attributes:
        first_blocks: number of the block that each run begins in.
        offsets: offset of each run's first row in its first block.
        are_single_rows: whether each run is one row, as in a decode step.
    """

    __slots__ = ("are_single_rows", "block_size", "counts", "first_blocks", "num_rows", "offsets")

    def __init__(self, block_size: int, starts: np.ndarray, counts: np.ndarray, num_rows: int) -> None:
        self.block_size = block_size
        self.counts = counts
        self.num_rows = num_rows
        self.are_single_rows = num_rows == len(counts)
        self.first_blocks, self.offsets = np.divmod(starts, block_size)

    @property
    def num_blocks(self) -> np.ndarray:
        num: np.ndarray = (self.offsets + self.counts + (self.block_size - 1)) // self.block_size
        return num

    @property
    def first_rows(self) -> np.ndarray:
        """Offset of each run's first row among the rows of all runs."""
        return _starts_of(self.counts)

    def indexes(self, block_ids: np.ndarray) -> np.ndarray:
        """Return the index of each row, `(num_rows,)`.

        `block_ids` is `(num_blocks.sum(),)` int64, of all blocks that the runs touch, run after run.
        """
        if self.are_single_rows:
            indexes: np.ndarray = block_ids * self.block_size + self.offsets
            return indexes
        first_rows_in_blocks = _starts_of(self.num_blocks) * self.block_size + self.offsets
        shift = np.repeat(first_rows_in_blocks - self.first_rows, self.counts)
        places: np.ndarray = np.arange(self.num_rows, dtype=np.int64) + shift
        indexes = block_ids[places // self.block_size]
        indexes *= self.block_size
        indexes += places % self.block_size
        return indexes


def as_array(numbers: Sequence[int]) -> np.ndarray:
    """Return `(n,)` int64; takes half the time of `np.array`."""
    return np.fromiter(numbers, np.int64, len(numbers))


def _starts_of(counts: np.ndarray) -> np.ndarray:
    starts: np.ndarray = np.cumsum(counts) - counts
    return starts
